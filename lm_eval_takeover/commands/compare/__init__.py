"""`lm-eval-takeover compare`: a pair by several methods, in one command that can be interrupted.

Comes in: a pair, tasks, rates, a folder (`comparison`). Goes out: a calibration where none fits, the results of each row
(`calls`, `worker`), and the tables of `leaderboard` and of costs (`running`). Start reading at `comparison`, then `running`.
"""
