"""On the path of processes with vLLM. A quarter of the time in which they import it would be looking for garbage.

With FORK_ENGINES, a server's engines are forked off a process that has imported what they need, which takes each seconds.
"""

import gc
import multiprocessing
import os

gc.set_threshold(100_000, 50, 100)
if "FORK_ENGINES" in os.environ:
    engines = multiprocessing.get_context("forkserver")
    engines.set_forkserver_preload(
        ["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "lm_eval_takeover.vllm.slots", "frozen"]
    )
    multiprocessing.get_context = lambda method=None: engines
