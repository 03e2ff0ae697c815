"""`lm-eval-takeover compare`: a pair by several methods, in one command that can be interrupted.

Comes in: a pair, tasks, rates, a folder (`comparison`). Goes out: a calibration where none fits and the results of each row
(`rows`, `calls`, `running`, `worker`), the table of `leaderboard` with what each row cost (`costs`), and ROWS, which other
commands read; or, with `--dry_run`, what all that would take (`estimate`). Start reading at `comparison`, then `running`.
"""
