"""`lm-eval-takeover list`: what there is by name.

Knows where names come from: packaged calibrations, scores and policies with their plug-ins, tasks, analyses. Comes in: perhaps
plug-ins of the user. Goes out: a list, or JSON. Start reading at `command`, then `names`.
"""
