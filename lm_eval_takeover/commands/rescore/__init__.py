"""`lm-eval-takeover rescore`: judge the stored answers of a run_dir again.

Reads a run_dir (`runs.run_reader`), and the tasks as they are installed or in a folder. Runs lm-eval's own evaluation on the
stored texts (`scoring`). Writes results and samples as lm-eval does, and lists changed verdicts. Start reading at `command`.
"""
