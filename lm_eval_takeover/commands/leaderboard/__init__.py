"""`lm-eval-takeover leaderboard`: lm-eval results of the takeover tasks, in the form of the paper's Table 3.

Knows which rows and columns that table has, and what its cells need. Comes in: results folders, read by `results`. Goes out:
rows under names that tell them apart (`rows`), and the paper's own (`published`), with Recovery and comparisons with one of
them (`contrasts`), in one of five formats (`formats`). Start reading at `command`, then `rows`.
"""
