"""`lm-eval-takeover calibrate`: tau and kappa of a pair, measured on rollouts of the host.

In: a pair, and prompts that are no test problems, in a task's form (`prompts`). Out: a calibration file and its page
(`measurement`); finished rollouts lie beside it until then (`rollouts`). Start reading at `command`, then `measurement`.
"""
