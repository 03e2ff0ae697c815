"""Tasks: what the task files under `task_configs/` call, and lm-eval's instances as requests of this package.

In come data sets, instances and responses of lm-eval; out go documents in one shape, requests, and metrics over all samples of a
problem. Torch is never imported here: tasks are also scored for models of other packages.
Start with `sampled.SampledTask`, the class of every task file; `verdicts` has avg@n, pass@k and maj@n, `instances` the way from
lm-eval to a request.
"""
