"""`lm-eval-takeover leaderboard`: lm-eval results of the takeover tasks, in the form of the paper's Table 3.

Knows which rows and columns that table has, and what its cells need. Comes in: results folders, read by `results`. Goes out:
rows as JSON-ready records (`rows`, `recoveries`), the paper's own rows (`published_rows`), comparisons with one of the rows
(`versus`), in one of five formats (`formats`). Start reading at `command`, then `rows`.
"""
