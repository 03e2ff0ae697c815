"""`lm-eval-takeover export`: results in the formats that others read.

Reads results folders of any model type. Writes files below `--out` for Every Eval Ever (`eee`), the Hub (`hub`) and
inspect_ai (`inspect_log`). A pair never has the name of its base there (`source`). Takeovers as preference pairs: `pairs`.
Start reading at `command`, then `source`.
"""
