"""What a run saves, and what its processes share: journals, traces, sample keys, counts, ranks.

In come requests and finished generations; out go samples by key, parquet files of traces, tallies and the facts of a run.
A sample is stored under a digest of everything that can change its text. So the same command resumes a stopped run.
Start with `recorder`, which the model asks; then `run_writer` (the thread that writes, damage), `journal` (the rows).
"""
