"""`lm-eval-takeover score`: score the stored samples of a run with both models, to see where they disagree.

Knows which texts of a run_dir still lack their scores and how they are put into passes. Comes in: run_dirs, and the pair
that they name. Goes out: `RUN_DIR/scores/*.parquet` (`runs.scores`). Nothing is generated: `decoding.teacher_forcing` reads
each text once per model. Start reading at `command`, then `scoring`.
"""
