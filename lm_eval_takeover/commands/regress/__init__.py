"""`lm-eval-takeover regress`: has a run become worse than its baseline? It compares intervals, not points.

Knows what a baseline holds (`baseline`), when a change counts as one, and how probable it is to notice a drop (`verdicts`). Comes
in: results folders, read by `results`, and a baseline file. Goes out: a verdict by task as text, JSON, JUnit XML and a Markdown
summary, and an exit status (`checks`). Start reading at `command`, then `verdicts`.
"""
