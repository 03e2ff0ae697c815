"""`lm-eval-takeover rescore`: judge the stored answers of a run_dir again.

Knows how lm-eval's own evaluation is run on texts that a journal holds. Comes in: a run_dir (`runs.stored`) and the tasks as they
are installed, or as they stand in a folder. Goes out: results and samples as lm-eval writes them, and the verdicts that changed
(`scoring`). Nothing is generated, but that a `judge` may be asked. Start reading at `command`.
"""
