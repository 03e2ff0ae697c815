"""Studies of runs: where the models disagree, what takeovers change, what they cost, and the papers' tables.

Every folder with a `command.py` is a subcommand; `measures/` has the pure functions. The lab imports the core; the core never
imports the lab.
"""
