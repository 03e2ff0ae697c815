"""`lm-eval-takeover analyze`: the paper's analyses of runs with a run_dir.

Reads run_dirs, one of them a scored base run. Writes a table (CSV, JSON) and a figure (SVG) of each analysis, and
`analysis.json`, which names the runs. Says why an analysis cannot be made. The analyses are in `lab/measures`. Start
reading at `command`, then `tables` (which run goes where), then `inputs`.
"""
