"""Writes in a process of its own, for engines whose start depends on the environment.

    python write_apart.py < jobs > generations

Of jobs, `[model arguments, requests]` in JSON, its last line has for each the tokens, takeovers and scores of the texts, the
preemptions, and whether it was vLLM's model runner V2 that wrote. With VLLM_USE_V2_MODEL_RUNNER=1 the interpreter of Triton runs
the kernels of that runner on a CPU: slow, and exact.
"""

import json
import multiprocessing
import os
import sys
from functools import partial
from types import SimpleNamespace

import torch


def main() -> None:
    torch.set_num_threads(1)
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        interpret_triton()
    first, *others = json.load(sys.stdin)
    done = [write(*first)]  # its ranks, if any, start as vLLM's do on a CPU: from nothing
    fork_ranks()
    print(json.dumps([*done, *(write(*job) for job in others)]))


def fork_ranks():
    """Have the next ranks start from this process, as vLLM's do on a GPU: that costs a tenth."""
    from vllm.v1.executor import multiproc_executor

    multiproc_executor.get_mp_context = partial(multiprocessing.get_context, "fork")


def interpret_triton():
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.backends import backends

    # vLLM asks for a backend of Triton's that computes on CPUs; the interpreter needs none.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)


def write(values, asked):
    backend, requests = open_backend(values), read_requests(asked)
    done = dict(backend.generate(requests, seed=3))
    counted = {metric.name: metric.value for metric in backend.engine.llm.get_metrics() if hasattr(metric, "value")}
    found = {
        "texts": [[done[i].tokens, done[i].taken_over, done[i].scores] for i in range(len(requests))],
        "preemptions": counted["vllm:num_preemptions"],
        "runner_v2": backend.engine.llm.llm_engine.vllm_config.use_v2_model_runner,
    }
    backend.close()
    return found


def open_backend(values):
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.pair.loading import load_pair, load_policy
    from lm_eval_takeover.vllm.backend import VllmBackend

    arguments = ModelArguments.parse(values)
    pair = load_pair(arguments)
    return VllmBackend(arguments, pair, load_policy(arguments, pair)[0])


def read_requests(asked):
    from lm_eval_takeover.method.request import Request, Sampling

    return [
        Request(**{**one, "prompt": tuple(one["prompt"]), "sampling": Sampling(**one["sampling"])}) for one in asked
    ]


if __name__ == "__main__":
    main()
