"""`lm-eval-takeover export`: results in a format that others read.

Reads results folders of any model type. Writes files below `--out` for the Hub (`hub`). A pair never has the name of its base
there. Start reading at `command`, then `hub`.
"""
