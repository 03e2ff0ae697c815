"""Tasks: what the task files under `task_configs/` call, and lm-eval's instances as requests of this package.

In come data sets, instances and responses of lm-eval; out go documents in one shape, requests, and metrics over 8 samples.
Torch is never imported here: tasks are also scored for models of other packages.
Start with `benchmarks.score_all`; `metrics` has avg@8, pass@k and maj@8, `instances` the way from lm-eval to a request.
"""
