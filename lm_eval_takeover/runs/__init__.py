"""What a run saves, and what its processes share: journals, traces, scores, sample keys, counts, ranks.

In come requests and finished generations; out go samples by key, parquet files for people, tallies and the facts of a run.
A sample is stored under a digest of everything that can change its text. So the same command resumes a stopped run.
Start with `recorder`, which the model asks; then `run_writer` (who writes, damage), `journal` (rows), `evidence` (columns).
"""
