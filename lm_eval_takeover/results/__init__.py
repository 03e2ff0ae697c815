"""Results files of lm-eval and their statistics, for `leaderboard` and `regress`.

Knows how lm-eval writes results and samples (`files`, `problems`), which settings can change a text (`documents`), what problems
cost (`problems`), intervals, differences and Recovery over problems (`statistics`), and what the paper printed (`published`).
Comes in: folders that `lm_eval --output_path` wrote. Goes out: frozen records and numbers. Imports neither torch nor
transformers. Start reading at `files`, then `statistics`.
"""
