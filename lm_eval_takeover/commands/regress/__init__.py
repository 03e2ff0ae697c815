"""`lm-eval-takeover regress`: has a run become worse than its baseline? It compares intervals, not points.

Comes in: results folders, read by `results`, and a baseline (`baseline`) that fits them (`matching`). Goes out: a verdict by task
(`verdicts`), or what a baseline can find (`planning`), as text, JSON, JUnit XML and a Markdown summary, and an exit status
(`checks`). Start reading at `command`, then `verdicts`.
"""
