"""Results and their statistics, for `leaderboard`, `regress` and all studies of runs.

Comes in: folders that `lm_eval --output_path` wrote (`files`, `problems`), or a run_dir (`stored`), in one form: a `Run` with its
tasks and their `Problems`. Goes out: records, settings that can change a text (`documents`), intervals and Recovery
(`statistics`), figures (`summary`). Imports neither torch nor transformers. Start reading at `files`, then `summary`.
"""
