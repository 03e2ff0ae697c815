"""`lm-eval-takeover compare`: a pair by several methods, in one command that can be interrupted.

Knows which rows a comparison has, and which command makes each. Comes in: a pair, tasks, a rate, a folder. Goes out: a
calibration where none fits and the results of each row (`calls`, `running`, `worker`), the table of `leaderboard` with what each
row cost, and ROWS, which `frontier` reads (`rows`); or, with `--dry_run`, what all that would take. Start reading at `command`,
then `rows`.
"""
