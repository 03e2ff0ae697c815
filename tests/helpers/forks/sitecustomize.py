"""On the path of a server: vLLM's engines are forked off a process that has imported what they need, which takes each seconds."""

import multiprocessing

_engines = multiprocessing.get_context("forkserver")
_engines.set_forkserver_preload(["vllm.v1.engine.core", "vllm.v1.worker.cpu_worker", "lm_eval_takeover.vllm.slots", "frozen"])
multiprocessing.get_context = lambda method=None: _engines
