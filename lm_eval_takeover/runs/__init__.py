"""Runs: what stays of a run, and what it shares between processes: journals, traces, keys of samples, counts, ranks.

In come requests and finished generations; out go samples by key, parquet files of traces, tallies and the facts of a run.
A sample is kept under a digest of all that can change its text, so that the same command goes on where it was stopped.
Start with `recorder`, which the model asks; then `run_dir` (the thread that writes), `journal` (the rows), `recovery` (damage).
"""
