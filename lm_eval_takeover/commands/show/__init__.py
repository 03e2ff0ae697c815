"""`lm-eval-takeover show`: print one answer of a run.

Knows how a text is marked where the donor wrote. Comes in: a run_dir and the name of a sample. Goes out: its problem, the rollout
with each takeover beside what the host would have written, and the verdict. Start reading at `command`, then `rollout`.
"""
