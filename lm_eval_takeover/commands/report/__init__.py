"""`lm-eval-takeover report`: one HTML file from an analysis folder: scores, figures and single answers.

Knows which rollouts fit into a file, how they are packed, and what a page may do (a content security policy; texts of models
are data). Comes in: what `analyze` wrote, and the run_dirs that it names. Goes out: one file that opens from disk, without a
network. The page's own sources stand in `page/`. Start reading at `command`, then `building`, then `page/report.js`.
"""
