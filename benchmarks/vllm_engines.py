"""Speed of backend=vllm beside its peers, in one interleaved run: each contender is an engine in a process of its own.

    python benchmarks/vllm_engines.py                                  the demo pair
    python benchmarks/vllm_engines.py --pair 1:26 --dtype bfloat16     random weights, 6.8 M beside 172 M parameters
    python benchmarks/vllm_engines.py --base Qwen/Qwen3-0.6B-Base --guide Qwen/Qwen3-8B --tau 1.1 --kappa 7 --graphs
    python benchmarks/vllm_engines.py --contenders fused drafts auto --rows 1 4 16
    python benchmarks/vllm_engines.py --gate_only                      the gate by itself, where there is no vLLM, too

Prints date, device and graphs, tokens per second by contender and concurrency, realized rates, what share of its cost model each
of the two designs reaches, and the gate's share. Fused: 1 / (t_base + t_guide). Drafts: E tokens for k t_base + t_guide, with the
guide's pass over a draft at the price of a step, and at that of a step of k + 1 times as many samples.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

CONTENDERS = ("fused", "drafts", "auto", "guide", "base", "speculation", "fly", "hf")
VOCAB = 151_936  # of the gate that is timed alone, and of random pairs


def main() -> None:
    options = parse()
    if options.contender:
        serve(options)
        return
    if options.gate_only:
        print(describe_machine(options))
        report_gate(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        names = name_pair(options, Path(folder))
        workers = {name: Worker(name, options, names) for name in options.contenders}
        rates: dict[str, dict[int, list[float]]] = {name: {rows: [] for rows in options.rows} for name in workers}
        last: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in workers}
        # The guide's, with k + 1 times the samples.
        verifying: dict[int, list[float]] = {rows: [] for rows in options.rows}
        for _ in range(options.rounds):
            for rows in options.rows:
                for name, worker in workers.items():
                    if worker.why_not is None:
                        last[name][rows] = answer = worker.ask(rows)
                        rates[name][rows].append(answer["tokens"] / answer["seconds"])
                if "guide" in workers and "drafts" in workers:
                    answer = workers["guide"].ask(rows * (options.block + 1))
                    verifying[rows].append(answer["tokens"] / answer["seconds"])
        for worker in workers.values():
            worker.close()
    report(options, workers, rates | {"verifying": verifying}, last)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--pair", default="demo", help="demo, or random weights: 1:13, 1:26, qwen3")
    add("--base", help="instead: a hub id or a folder")
    add("--guide")
    add("--dtype", default="float32")
    add("--rows", type=int, nargs="+", default=[1, 4, 8, 64], help="samples at a time")
    add("--rounds", type=int, default=3)
    add("--tokens", type=int, default=96, help="new tokens of each sample")
    add("--tau", type=float, default=1.5)
    add("--kappa", type=float, default=2.0)
    add("--block", type=int, default=4, help="tokens of a draft")
    add("--fly_block", type=int, default=8, help="for FLy, which looks at up to 6 tokens of a draft behind a mismatch")
    add("--graphs", action="store_true", help="compile and capture CUDA graphs")
    add("--gate_only", action="store_true", help="time the gate alone")
    add("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    add("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def name_pair(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    if options.base:
        return {"base": options.base, "guide": options.guide}
    if options.pair == "demo":
        from padded_heads import write_demo

        return write_demo(folder, vocab=512)
    from random_pairs import save_pair

    made = save_pair(folder, options.pair, VOCAB, getattr(torch, options.dtype))
    return {role: str(path) for role, path in made.items()}


class Worker:
    """A contender in a process of its own, which answers a number of samples with tokens and seconds."""

    def __init__(self, name: str, options: argparse.Namespace, pair: dict[str, str]) -> None:
        words = [sys.executable, __file__, "--contender", name, "--base", pair["base"], "--guide", pair["guide"]]
        for option in ("dtype", "tokens", "tau", "kappa", "block", "fly_block"):
            words += [f"--{option}", str(getattr(options, option))]
        words += ["--rows", *map(str, options.rows), *(["--graphs"] if options.graphs else [])]
        words += ["--contenders", *options.contenders]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.why_not: str | None = self._read().get("why_not")

    def ask(self, rows: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(rows, file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit("a contender ended before its time; its error is above")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def serve(options: argparse.Namespace) -> None:
    """The process of a contender."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        write = open_contender(options)
    except LookupError as error:
        print(json.dumps({"why_not": str(error)}), flush=True)
        return
    write(options.rows[0])  # warm
    print("{}", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        answer = write(int(line))
        print(json.dumps(answer | {"seconds": time.perf_counter() - started}), flush=True)


Write = Callable[[int], dict[str, Any]]


def open_contender(options: argparse.Namespace) -> Write:
    """`rows` to what was written. Raises LookupError for what is not there."""
    if options.contender in ("fused", "drafts", "auto", "hf"):
        return open_ours(options)
    return open_vllm(options)


def open_ours(options: argparse.Namespace) -> Write:
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.backends import open_backend
    from lm_eval_takeover.method.request import Request, Sampling
    from lm_eval_takeover.pair.pair import load_pair
    from lm_eval_takeover.pair.policy_choice import load_policy

    values: dict[str, Any] = {"base": options.base, "guide": options.guide, "tau": options.tau, "kappa": options.kappa}
    if options.contender == "hf":
        values |= {"dtype": options.dtype}
    else:
        block = {"drafts": options.block, "auto": "auto"}.get(options.contender, 1)
        values |= {"backend": "vllm", "block_size": block, **engine_options(options)}
    arguments = ModelArguments.parse(values)
    pair = load_pair(arguments)
    backend = open_backend(arguments, pair, load_policy(arguments, pair)[0])
    prompts = [tuple(pair.encode(text)) for text in texts()]

    def write(rows: int) -> dict[str, Any]:
        asked = [
            Request(prompts[i % len(prompts)], i // len(prompts), options.tokens, Sampling(0.6, 0.95)) for i in range(rows)
        ]
        done = [generation for _, generation in backend.generate(asked, seed=0, rows=rows)]
        tokens = sum(len(one.tokens) for one in done)
        passes = sum(one.guide_passes for one in done)
        return {"tokens": tokens, "takeovers": sum(one.takeovers for one in done), "guide_passes": passes}

    return write


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Each engine has an equal share of the memory: all of them stay there to take turns."""
    length = 512 if options.pair == "demo" else 2048
    return {"dtype": options.dtype, "max_model_len": length, "max_num_seqs": max(options.rows) * (options.block + 1),
            "gpu_memory_utilization": 0.9 / len(options.contenders), "enforce_eager": not options.graphs}  # fmt: skip


def open_vllm(options: argparse.Namespace) -> Write:
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    extra: dict[str, Any] = {}
    if options.contender in ("speculation", "fly"):
        extra["speculative_config"] = {
            "method": "draft_model", "model": options.base, "num_speculative_tokens": options.block,
        }  # fmt: skip
    if options.contender == "fly":
        extra["speculative_config"] |= ask_for_fly(options.fly_block)
    model = options.base if options.contender == "base" else options.guide
    llm = LLM(model=model, generation_config="vllm", **engine_options(options), **extra)
    tokenizer = AutoTokenizer.from_pretrained(model)
    prompts = [{"prompt_token_ids": tokenizer.encode(text)} for text in texts()]
    params = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=options.tokens, detokenize=False)

    def write(rows: int) -> dict[str, Any]:
        done = llm.generate([prompts[i % len(prompts)] for i in range(rows)], params, use_tqdm=False)
        return {"tokens": sum(len(one.outputs[0].token_ids) for one in done)}

    return write


def ask_for_fly(block: int) -> dict[str, Any]:
    """vLLM's options of FLy (arXiv:2511.22972), with its own window and entropy. Raises LookupError where there is none."""
    import vllm
    from vllm.config import SpeculativeConfig
    from vllm.platforms import current_platform

    if "fly_entropy_threshold" not in {field.name for field in fields(SpeculativeConfig)}:
        raise LookupError(f"FLy is in vLLM 0.33 and later, and this is {vllm.__version__}")
    if current_platform.is_cpu():
        raise LookupError("vLLM's FLy needs a GPU")
    return {"rejection_sample_method": "fly", "num_speculative_tokens": block}


def texts() -> list[str]:
    from lm_eval_takeover.demo import calibration_prompts

    return calibration_prompts()[:8]


def time_gate(rows: int, vocab: int, dtype: torch.dtype, repeats: int = 5) -> float:
    """Seconds of the gate alone on a step of so many rows: scores, decision, race at T = 0.6 and top-p 0.95."""
    from lm_eval_takeover.method.gate import Gate
    from lm_eval_takeover.method.policies import Disagreement
    from lm_eval_takeover.vllm.settings import RequestSettings
    from lm_eval_takeover.vllm.slots import Slots

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    slots = Slots(Disagreement(gate=Gate(1.0, 2.0)), capacity=rows, device=device)
    tracks = [slots.enter(RequestSettings(id=str(i), temperature=0.6, top_p=0.95), (i,)) for i in range(rows)]
    logits = {role: (5 * torch.randn(rows, 1, vocab, device=device)).to(dtype).float() for role in ("base", "guide")}
    seconds = []
    for step in range(repeats):
        wait(device)
        started = time.perf_counter()
        slots.decide(tracks, torch.full((rows,), step, device=device), logits)
        wait(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


# Matrices of a layer, layers and the head of Qwen3-0.6B and Qwen3-8B, as (inputs, outputs).
SHAPES = {
    "0.6B": ([(1024, 2048), (1024, 1024), (1024, 1024), (2048, 1024), (1024, 3072), (1024, 3072), (3072, 1024)], 28, 1024),
    "8B": ([(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 12288), (4096, 12288), (12288, 4096)], 36, 4096),
}  # fmt: skip


def time_matrices(rows: int, dtype: torch.dtype, repeats: int = 5) -> float:
    """Seconds of the matrix products alone of a fused step by models of these shapes: attention would come on top."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    total = 0.0
    for layer, layers, width in SHAPES.values():
        for shapes, times in ((layer, layers), ([(width, VOCAB)], 1)):
            products = [
                (torch.randn(rows, inputs, device=device).to(dtype), torch.nn.Linear(inputs, outputs, False, device, dtype))
                for inputs, outputs in shapes
            ]  # fmt: skip
            total += times * statistics.median(time_products(products, device) for _ in range(repeats + 1))
    return total


@torch.inference_mode()
def time_products(products: list[tuple[torch.Tensor, torch.nn.Linear]], device: torch.device) -> float:
    wait(device)
    started = time.perf_counter()
    for rows, linear in products:
        linear(rows)
    wait(device)
    return time.perf_counter() - started


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def report(
    options: argparse.Namespace,
    workers: dict[str, Worker],
    rates: dict[str, dict[int, list[float]]],
    last: dict[str, dict[int, dict[str, Any]]],
) -> None:
    graphs = "on" if options.graphs else "off"
    pair, drafts = options.base or options.pair, f"drafts of {options.block}, FLy's of {options.fly_block}"
    print(f"{describe_machine(options)}, graphs {graphs}, pair {pair}, {drafts}, medians of {options.rounds} rounds\n")
    print("|tokens/s|" + "|".join(f"{rows} samples" for rows in options.rows) + "|\n|---|" + "--:|" * len(options.rows))
    middle = {name: {rows: statistics.median(found) for rows, found in of.items() if found} for name, of in rates.items()}
    for name, worker in workers.items():
        if worker.why_not is None:
            print(f"|{name}|" + "|".join(f"{middle[name][rows]:,.0f}" for rows in options.rows) + "|")
    shares = (
        ("fused, of its cost model", fused_share),
        ("drafts, of theirs", drafts_share),
        ("drafts, where a pass over a draft costs its tokens", loaded_drafts_share),
    )
    for label, share in shares:
        if all(middle.get(name) for name in ("fused", "drafts", "guide", "base")):
            print(f"|{label}|" + "|".join(f"{share(options, middle, last, rows):.2f}" for rows in options.rows) + "|")
    if all(map(rates.get, ("fused", "drafts", "auto"))):
        print("|auto over the better of both" + "".join(f"|{auto_share(rates, rows):.2f}" for rows in options.rows) + "|")
    for worker in filter(lambda one: one.why_not is not None, workers.values()):
        print(f"\n{worker.why_not}: skipped")
    if last.get("fused"):
        done = last["fused"][max(options.rows)]
        print(f"\nrealized rate {done['takeovers'] / done['tokens']:.1%}")
    report_gate(options)


def describe_machine(options: argparse.Namespace) -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return f"{datetime.date.today()}, {device}, {torch.get_num_threads()} threads, {options.dtype}"


def report_gate(options: argparse.Namespace) -> None:
    dtype = getattr(torch, options.dtype)
    print(f"\nthe gate over {VOCAB:,} tokens, and its share of a fused step of Qwen3-0.6B's and 8B's matrices:\n")
    print("|rows|gate|matrices|share|\n|--:|--:|--:|--:|")
    for rows in options.rows:
        gate, matrices = time_gate(rows, VOCAB, dtype), time_matrices(rows, dtype)
        print(f"|{rows}|{1000 * gate:,.1f} ms|{1000 * matrices:,.0f} ms|{gate / (gate + matrices):.1%}|")


def auto_share(rates: dict[str, dict[int, list[float]]], rows: int) -> float:
    """The speed of drafts by load over that of fused, or of drafts of one length where those are faster: medians of rounds."""
    ratios = (
        statistics.median(ours / other for ours, other in zip(rates["auto"][rows], rates[name][rows], strict=True))
        for name in ("fused", "drafts")
    )
    return min(ratios)


def fused_share(options: argparse.Namespace, middle: Any, last: Any, rows: int) -> float:
    """Fused's speed over 1 / (t_base + t_guide)."""
    return float(middle["fused"][rows] * (1 / middle["base"][rows] + 1 / middle["guide"][rows]))


def drafts_share(options: argparse.Namespace, middle: Any, last: Any, rows: int) -> float:
    """Their speed over E / (k t_base + t_guide), with E the tokens that stood for each pass of the guide."""
    return _drafts_share(options, middle, last, rows, 1 / middle["guide"][rows])


def loaded_drafts_share(options: argparse.Namespace, middle: Any, last: Any, rows: int) -> float:
    """As `drafts_share`, with the step of the guide timed that reads as many tokens as a pass over the drafts."""
    return _drafts_share(options, middle, last, rows, (options.block + 1) / middle["verifying"][rows])


def _drafts_share(options: argparse.Namespace, middle: Any, last: Any, rows: int, verification: float) -> float:
    """verification: seconds for each row."""
    done = last["drafts"][rows]
    stood = done["tokens"] / max(done["guide_passes"], 1)
    return float(middle["drafts"][rows] * (options.block / middle["base"][rows] + verification) / stood)


if __name__ == "__main__":
    main()
