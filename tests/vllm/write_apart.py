"""Writes by model runner V2 in a process of its own: `python write_apart.py < jobs > generations`. Triton's interpreter runs it.

Of jobs, `[model arguments, requests, names of policies]` in JSON, its last line has for each the tokens, takeovers, scores and
observations of the texts, one policy after the other, the passes of their drafts, and what the engine did. Without names the
policy is that of the arguments.
"""

import gc
import json
import os
import sys
from operator import itemgetter
from types import SimpleNamespace
from unittest.mock import patch

import torch
from helpers.pairs import METHODS, POLICIES

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.pair import load_pair
from lm_eval_takeover.pair.policy_choice import load_policy
from lm_eval_takeover.vllm import engine, launch
from lm_eval_takeover.vllm.backend import VllmBackend
from lm_eval_takeover.vllm.block_rule import Choice


def main() -> None:
    torch.set_num_threads(1)
    interpret_triton()
    schedule_ahead()
    warm_up()
    engine.TESTED_PROMPTS, engine._TESTED_TOKENS = 1, 6
    collect = gc.collect
    with patch.object(gc, "collect"):  # vLLM collects several times as an engine starts, and as it ends
        print(json.dumps([write(collect, *job) for job in json.load(sys.stdin)]))


def interpret_triton():
    os.environ |= {"TRITON_INTERPRET": "1", launch.RUNNER: "1"}
    import helpers.interpreter  # noqa: F401 (makes the interpreter fast)
    from triton.backends import backends

    # vLLM asks for a backend of Triton's that computes on CPUs; the interpreter needs none.
    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
    from lm_eval_takeover.vllm import drafts

    drafts.PIECE = 2**15  # rows are decided in pieces


def schedule_ahead():
    """Have vLLM schedule a step before it knows what the one before wrote, as on a GPU."""
    from vllm.platforms.cpu import CpuPlatform

    update = CpuPlatform.check_and_update_config

    def update_all_else(config):
        chosen = config.scheduler_config.async_scheduling
        update(config)
        config.scheduler_config.async_scheduling = chosen

    CpuPlatform.check_and_update_config = staticmethod(update_all_else)


def warm_up():
    """Have vLLM's own warm-up run, as on a GPU, but for what Triton's interpreter lacks: log-probabilities and grammars."""
    from vllm import SamplingParams
    from vllm.v1.worker.cpu_worker import CPUWorker
    from vllm.v1.worker.gpu.warmup import warmup_kernels

    bare, compile_model = SamplingParams.for_sampler_warmup(), CPUWorker.compile_or_warm_up_model
    bare.logprobs = bare.prompt_logprobs = None

    def compile_and_warm_up(worker):
        with patch.object(SamplingParams, "for_sampler_warmup", lambda: bare):
            warmup_kernels(worker.model_runner, worker.execute_model, lambda grammar: worker.sample_tokens(None))
        return compile_model(worker)

    CPUWorker.compile_or_warm_up_model = compile_and_warm_up


def write(collect, values, asked, names=()):
    if ranges := values.pop("ranges", None):  # tokens of a draft by the number of requests, for `block_size=auto`
        launch.choose_drafts = lambda *given, **named: Choice(list(map(tuple, ranges)), "")
    arguments = ModelArguments.parse(values)
    pair = load_pair(arguments)
    backend = VllmBackend(arguments, pair, load_policy(arguments, pair)[0])
    requests = [Request(**{**one, "prompt": tuple(one["prompt"]), "sampling": Sampling(**one["sampling"])}) for one in asked]
    llm, done = backend.engine.llm, []
    for policy in [(POLICIES | METHODS)[name] for name in names] or [backend.policy]:
        backend.policy = policy
        done += [one for _, one in sorted(backend.generate(requests, seed=3, traced=True), key=itemgetter(0))]
    counted = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    config = llm.llm_engine.vllm_config
    found = {
        "texts": [[one.tokens, one.taken_over, one.scores, list(one.observed)] for one in done],
        "preemptions": counted["vllm:num_preemptions"],
        "runner_v2": config.use_v2_model_runner,
        "async_scheduling": config.scheduler_config.async_scheduling,
        "block": backend.engine.facts.block,
        "passes": {"base": sum(one.base_passes for one in done), "guide": sum(one.guide_passes for one in done)},
    }
    del llm
    backend.close()
    del backend
    collect()
    return found


if __name__ == "__main__":
    main()
