"""`effects`: what a single token does to the outcome.

In comes the run_dir of a guided run; out go tables and figures of effects. `positions` chooses where, without torch, so that a
dry run ends at once. `measuring` writes the texts behind both tokens, has them judged and writes the files. Start reading at
`measuring.measure`.
"""
