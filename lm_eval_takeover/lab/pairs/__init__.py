"""`pairs`: takeovers of a run as preference pairs to train on.

Reads a guided run's run_dir and the folder of its effects. `writing` writes the pairs as JSONL and parquet; `train_pairs.py` is
copied beside them. Start reading at `writing.export`.
"""
