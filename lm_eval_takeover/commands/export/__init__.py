"""`lm-eval-takeover export`: results in the formats that others read.

Knows three formats: Every Eval Ever (`eee`), `.eval_results/*.yaml` of the Hub (`hub`), logs of inspect_ai (`inspect_log`). Comes
in: results folders of any model type. Goes out: files below `--out`, in which a pair is never called by the name of its base
(`source`). Start reading at `command`, then `source`.
"""
