"""`lm-eval-takeover analyze`: the paper's analyses of runs with a run_dir.

Knows which run each analysis reads and what to say if its input is missing. In: run_dirs, with a scored base run. Out: a table
(CSV, JSON) and a figure (SVG) of each analysis, and `analysis.json`, which names the runs. The analyses are in the folder
`analysis`. Start reading at `command`, then `tables` (which run goes where), then `inputs`.
"""
