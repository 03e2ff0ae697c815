"""What a run costs the process of `lm_eval` when engines on Ray's nodes write: its processor time and memory.

    python benchmarks/cluster.py --engines 2 4 8

Needs Ray, and starts its nodes on this machine, with two GPUs each that are not there. The engines are stubs: they draw
random tokens without a model, as fast as they are asked. The driver is the real one: it plans, hands out, decodes, packs
traces and commits each sample to a run_dir. Prints a Markdown table.
"""

import argparse
import datetime
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from lm_eval.api.instance import Instance

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (Path(__file__).parents[1], Path(__file__).parents[1] / "tests")))

from helpers.stub_engines import stand_in  # type: ignore[import-not-found]

from lm_eval_takeover.model import GuidedTakeover

MARKS = (0.1, 0.5, 1.0)  # of the samples that are written, where memory is read


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--problems", type=int, default=2791)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest text; the mean is half of it")
    options = parser.parse_args()
    stand_in()
    start_nodes(-(-max(options.engines) // 2))
    samples = options.problems * options.repeats
    print(f"{datetime.date.today()}, {samples:,} samples of {options.tokens // 2} tokens on average\n")
    print("|engines|driver, ms a sample|of one core|samples/s|MiB at 10 %|at 50 %|at the end|", flush=True)
    print("|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for engines in options.engines:
        measure(options, engines)


def start_nodes(count: int) -> None:
    from ray.cluster_utils import Cluster

    nodes = Cluster()
    for _ in range(count):
        nodes.add_node(num_cpus=1, num_gpus=2, object_store_memory=2**27, include_dashboard=False)
    os.environ["RAY_ADDRESS"] = nodes.address


def measure(options: argparse.Namespace, engines: int) -> None:
    instances = [
        Instance(
            "generate_until", {"n": n}, (f"Problem {n}: what is {n} + {n}?", ask(options)), 0, ("sums", n, options.repeats)
        )
        for n in range(options.problems)
    ]
    requests = [instance for instance in instances for _ in range(options.repeats)]
    memory = dict[float, float]()
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"data_parallel_size": engines, "max_num_seqs": 256, "stub_pause": 0.0005, "tau": 1.5, "run_dir": folder}
        model = GuidedTakeover(backend="vllm", max_length=options.tokens + 64, **arguments)
        assert model.engine and model.run is not None
        add, own = model.run.add, psutil.Process()
        written = 0

        def count(*given: Any) -> None:
            nonlocal written
            add(*given)
            written += 1
            for mark in MARKS:
                if written == int(mark * len(requests)):
                    memory[mark] = own.memory_info().rss / 2**20

        with patch.object(model.run, "add", count):
            started, busy = time.perf_counter(), time.process_time()
            model.generate_until(requests, disable_tqdm=True)
            busy, seconds = time.process_time() - busy, time.perf_counter() - started
        model.engine.close()
        model.close()
    at = "|".join(f"{memory[mark]:,.0f}" for mark in MARKS)
    rate = len(requests) / seconds
    print(f"|{engines}|{1000 * busy / len(requests):.2f}|{busy / seconds:.0%}|{rate:,.0f}|{at}|", flush=True)


def ask(options: argparse.Namespace) -> dict[str, object]:
    return {"until": ["\n\n\n\n"], "max_gen_toks": options.tokens, "do_sample": True, "temperature": 0.6}


if __name__ == "__main__":
    main()
