"""On the path of processes with vLLM. A quarter of the time in which they import it would be looking for garbage.

vLLM has the processes of an engine spawned on a CPU. Here they are forked from one that has imported all that they need.
"""

import gc
from multiprocessing import context, set_forkserver_preload

gc.set_threshold(100_000, 50, 100)
context._concrete_contexts["spawn"] = context._concrete_contexts["forkserver"]
set_forkserver_preload(["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "lm_eval_takeover.vllm.pair_model"])
