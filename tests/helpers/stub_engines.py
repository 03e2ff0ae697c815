"""Engines without vLLM, for what a cluster does with them: a text follows from its prompt and the number of its sample.

`python stub_engines.py --model guided-takeover …` is `lm_eval` with them. They read these model arguments: `max_num_seqs`,
`stub_pause`, seconds of a step, which writes the oldest text; `stub_torch`, another version of it; `stub_mounts`, the id of a
process whose files it sees.
"""

import ctypes
import os
import runpy
import sys
import time

import numpy as np
import torch

from helpers.processes import enter_mounts
from lm_eval_takeover.decoding.emission import COLUMNS, SCORE, TAKEN
from lm_eval_takeover.vllm import backend, cluster
from lm_eval_takeover.vllm.engine import EngineFacts, Text


class StubEngine:
    def __init__(self, arguments, pair, policy):
        own = arguments.engine_arguments
        self.facts = EngineFacts(torch.float32, 64, own.get("max_num_seqs", 2), 1)
        self.pause, self.vocab, self.running = own.get("stub_pause", 0.02), pair.vocab_size, {}

    def add(self, job):
        assert len(self.running) < self.facts.max_num_seqs * 5 // 4
        self.running[job.number] = job

    def step(self):
        time.sleep(self.pause)
        job = self.running.pop(next(iter(self.running)))
        gpus = {(os.environ.get("STUB_NODE"), gpu) for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")}
        text = write(job, self.vocab) if job.request else Text(job.number, [os.getpid()], None, gpus)
        return [text], len(text.tokens)

    def run(self, jobs, count_tokens=None):
        yield from (write(job, self.vocab) for job in jobs)

    def abort(self):
        self.running.clear()

    def close(self):
        pass


class StubActor(cluster.EngineActor):
    def start(self, arguments, *given):
        cluster.VllmEngine = StubEngine
        own, find = arguments.engine_arguments, cluster.find_version
        if other := own.get("stub_torch"):
            cluster.find_version = lambda name: other if name == "torch" else find(name)
        if pid := own.get("stub_mounts"):
            ctypes.CDLL(None).unshare(0x200)  # CLONE_FS, from the other threads
            enter_mounts(pid)
        return super().start(arguments, *given)


class StubEngines(cluster.Engines):
    def __init__(self, arguments, pair, policy):
        super().__init__(arguments, pair, policy, StubActor)


def write(job, vocab):
    request = job.request
    drawn = np.random.default_rng([len(request.prompt), *request.prompt, request.sample])
    tokens = drawn.integers(vocab, size=drawn.integers(1, request.max_new_tokens + 1))
    records = np.zeros((len(tokens), COLUMNS), np.float32)
    records[:, SCORE] = drawn.random(len(tokens))
    records[::9, TAKEN] = 1
    return Text(job.number, tokens.tolist(), records, {})


def stand_in(engines=StubEngines):
    """Let `backend=vllm` have these engines in this process."""
    for name in ("check_version", "check_names", "check_architectures"):
        setattr(backend, name, lambda *_: None)
    backend.Engines, backend.VllmEngine = engines, StubEngine


if __name__ == "__main__":
    from helpers.stub_engines import stand_in as stand_in_there  # classes that nodes can import

    stand_in_there()
    sys.argv[0] = "lm_eval"
    runpy.run_module("lm_eval", run_name="__main__", alter_sys=True)
