"""`lm-eval-takeover show`: print one answer of a run.

Reads a run_dir and the name of a sample. Prints the problem, the answer with its takeovers marked, and the verdict. Start
reading at `command`, then `rollout`.
"""
