"""`lm-eval-takeover score`: score the stored samples of a run with both models, to see where they disagree.

Reads run_dirs, and the pair that they name. Adds the scores of texts without scores to the journal, and writes parquet files
from it. Nothing is generated: `decoding.teacher_forcing` reads each text once per model. Start reading at `scoring`.
"""
