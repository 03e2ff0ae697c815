"""`lm-eval-takeover report`: one HTML file from an analysis folder: scores, figures and single answers.

Reads what `analyze` wrote, and the run_dirs that it names. Writes one file that opens from disk, without a network. Chooses
the answers that fit, packs them, and sets a content security policy. The page's own sources are in `page/`. Start reading
at `command`, then `building`, then `page/report.js`.
"""
