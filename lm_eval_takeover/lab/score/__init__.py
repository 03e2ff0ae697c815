"""`lm-eval-takeover score`: score the stored samples of a run with both models, to see where they disagree.

Reads run_dirs, and the pair that they name. Writes `RUN_DIR/scores/*.parquet` (`lab.score_files`) for texts without scores.
Nothing is generated: `decoding.teacher_forcing` reads each text once per model. Start reading at `command`, then `scoring`.
"""
