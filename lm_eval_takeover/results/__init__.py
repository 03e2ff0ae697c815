"""Results files of lm-eval, and what can be said of them: the ground that `leaderboard` and `regress` stand on.

Knows how lm-eval writes results and samples (`files`, `samples`), what a row of the paper's Table 3 is (`runs`), which settings
can change a text (`settings`), intervals and differences over problems (`statistics`), Recovery (`recovery`), the chance to notice
a drop (`power`), and what the paper printed (`published`). Comes in: folders that `lm_eval --output_path` wrote. Goes out: frozen
records and numbers. Imports neither torch nor transformers. Start reading at `files`, then `statistics`.
"""
