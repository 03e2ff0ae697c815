"""`lm-eval-takeover list`: the names of packaged calibrations, scores, policies, tasks and analyses.

Reads the registries and the user's plug-ins. Prints a list, or JSON. Start reading at `command`, then `names`.
"""
