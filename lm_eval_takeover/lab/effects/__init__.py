"""`effects`: what a single token does to the outcome.

In comes the run_dir of a guided run; out go tables and figures of effects. `positions` chooses where, `measuring` writes the
texts behind both tokens and has them judged, `tables` writes the files. Start reading at `measuring.measure`.
"""
