"""`lm-eval-takeover calibrate`: tau and kappa of a pair, measured on rollouts of the host.

Knows how scores are collected, and how a spike ratio is solved for that realizes a wanted rate. Comes in: a pair, prompts that
are no test problems (`prompts`), decoding settings. Goes out: a calibration file and its page; scores of finished rollouts lie
beside it until then (`score_parts`). Or, with `--compare`, files that exist side by side (`comparison`). Start reading
at `command`, then `measurement` (options to files), `task_form` (what a task asks with), `rollouts` (prompts to scores to
thresholds) and `budget` (rate to spike ratio).
"""
