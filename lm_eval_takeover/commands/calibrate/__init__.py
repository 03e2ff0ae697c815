"""`lm-eval-takeover calibrate`: tau and kappa of a pair, measured on rollouts of the host.

Comes in: a pair, prompts that are no test problems (`prompts`), a task's template and decoding (`task_form`). Goes out: a
calibration file and its page (`page`); scores of finished rollouts lie beside it until then (`score_parts`). With `--compare`:
files side by side (`comparison`). Start reading at `command`, then `measurement` (options to files), `setup` (what is measured),
`rollouts` (prompts to scores to thresholds) and `rate_solver` (rate to spike ratio).
"""
