"""`lm-eval-takeover show`: print answers of a run.

Reads a run_dir and the name of a sample, or which answers. Prints the problem, the answer with its takeovers marked, the
verdict, and what the gate saw. Start reading at `command`, then `rollout`.
"""
