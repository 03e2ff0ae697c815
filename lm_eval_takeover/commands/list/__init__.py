"""`lm-eval-takeover list`: the names of packaged calibrations, scores, policies and tasks, and of the user's plug-ins."""
