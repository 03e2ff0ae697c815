"""`lm-eval-takeover paper`: every table and figure of both papers from one manifest.

Reads `manifest.toml` (set-ups of models and tasks; items with their rows, analyses and figures), runs what is missing by the
other commands, and writes `index.html` and `index.md`. It computes no statistics: each number is one of a command's JSON files.
Start reading at `manifest`, then `command`.
"""
