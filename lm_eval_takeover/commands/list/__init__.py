"""`lm-eval-takeover list`: the names of packaged calibrations, scores, policies and tasks.

Reads the registries and the user's plug-ins. Prints a list, or JSON.
"""
