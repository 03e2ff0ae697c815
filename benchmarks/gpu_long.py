"""What long contexts and many rows cost on a GPU, and what runs there.

    python benchmarks/gpu_long.py [--device cuda] [--pair qwen3] [--dtype bfloat16]

Prints: a pass over 12 tokens in CUDA graphs beside the eager one, by rows and columns, with the largest difference of their
logits, also after the buffers have grown and after a reader was taken again; seconds of captures; a run of long texts with its
peak memory, and the same run with too little memory, where the batch is halved; the attention kernels of 1 token, 12 tokens and a
prefill; and a profile of one block: launches, and the share of the time in which the device idles.
The same code runs small with `--device cpu --pair demo --dtype float32 --rows 2 --columns 256 --tokens 24`.
"""

import argparse
import itertools
import logging
import math
import statistics
from collections.abc import Callable
from typing import Any

import torch
from gpu_batches import ask
from random_pairs import clock, gated, load, pair_folders, wait
from torch import Tensor

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.forward.forward_pass import ForwardPass, prepare_pass
from lm_eval_takeover.forward.reader import Reader, take_reader
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

DRAFT = 12  # tokens of a pass that verifies
RATE = 0.05  # of takeovers
_VOCAB = 512
_WORDS = ("attention", "flash", "fmha", "mem_eff", "sdpa", "cutlass", "cudnn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pair", default="qwen3", choices=["demo", "1:13", "1:26", "qwen3"])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32], help="of a pass")
    parser.add_argument("--columns", type=int, nargs="+", default=[8192, 16_384])
    parser.add_argument("--tokens", type=int, default=16_384, help="of the long texts")
    parser.add_argument("--entropy", type=float, default=0.5, help="of the random pair's distributions, in nats")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with pair_folders(options.pair, 8192, options.dtype, options.entropy) as folders:
        pair = load(folders, options.device, options.dtype)
    policy = gated(pair, ask(2, 128), RATE)
    profile_block(pair, policy)
    run_long(pair, policy, min(options.rows), options.tokens)
    list_kernels(pair.member("guide"), options.columns)
    compare_passes(pair.member("guide"), options)


def compare_passes(member: Member, options: argparse.Namespace) -> None:
    """Passes of captured graphs beside eager ones: milliseconds, and the largest difference of logits over their spread."""
    print(f"|{member.role}, {DRAFT} tokens, rows|columns|state|first, ms|graph, ms|eager, ms|difference|")
    print("|--:|--:|---|--:|--:|--:|--:|")
    sizes = sorted(itertools.product(options.rows, options.columns), key=math.prod)
    for rows, columns in sizes:  # what needs the most memory comes last
        try:
            _compare_at(member, rows, columns, options.rounds)
        except torch.OutOfMemoryError as error:
            print(f"|{rows}|{columns}|out of memory: {str(error).splitlines()[0][:80]}|||||", flush=True)
        prepare_pass(member).left_reader = None  # with its buffers
        if member.device.type == "cuda":
            torch.cuda.empty_cache()


@torch.inference_mode()
def _compare_at(member: Member, rows: int, columns: int, rounds: int) -> None:
    forward = prepare_pass(member)
    assert isinstance(forward, ForwardPass)
    captured = take_reader(forward, rows, _VOCAB, columns + 4 * DRAFT)
    eager = Reader(forward, rows, _VOCAB, columns + 4 * DRAFT, graphed=False)
    ids = torch.randint(0, _VOCAB, (rows, DRAFT), device=member.device)
    for length, state in (
        (columns // 2 - 2 * DRAFT, "as begun"),
        (columns - 2 * DRAFT, "grown"),
        (columns - 2 * DRAFT, "again"),
    ):
        if state == "again":
            captured.leave()
            captured = take_reader(forward, rows, _VOCAB, columns + 4 * DRAFT)
        filled = eager.prefill([[7] * length])
        for reader in (captured, eager):
            for row in range(rows):
                reader.copy_row(filled, 0, row)
        first, made = _time_read(captured, ids)
        kept = made.clone()
        graph, plain = (statistics.median(_time_read(each, ids)[0] for _ in range(rounds)) for each in (captured, eager))
        expected = eager.read(range(rows), ids)
        difference = float((kept.float() - expected.float()).abs().max() / expected.float().std())
        print(f"|{rows}|{columns}|{state}|{first * 1e3:.1f}|{graph * 1e3:.2f}|{plain * 1e3:.2f}|{difference:.2g}|", flush=True)


def _time_read(reader: Reader, ids: Tensor) -> tuple[float, Tensor]:
    """Seconds of a pass over all rows, and its logits."""
    wait(reader.device)
    started = clock()
    made = reader.read(range(len(ids)), ids)
    wait(reader.device)
    return clock() - started, made


@torch.inference_mode()
def list_kernels(member: Member, columns: list[int]) -> None:
    """The attention kernels by new tokens and columns, or operations where the device has no kernels."""
    print("\n|new tokens|columns|attention runs|\n|--:|--:|---|")
    forward = prepare_pass(member)
    assert isinstance(forward, ForwardPass)
    for new in (1, DRAFT, 512):
        for read in sorted({256, *columns}):
            reader = Reader(forward, 1, _VOCAB, read + 512, graphed=False)
            reader.copy_row(reader.prefill([[7] * (read - 64)]), 0, 0)
            ids = torch.full((1, new), 5, device=reader.device)
            reader.read([0], ids)
            names = {key for key, _, _ in _profile(member, lambda r=reader, i=ids: r.read([0], i))}  # type: ignore[misc]
            found = sorted(name for name in names if any(word in name.lower() for word in _WORDS))
            print(f"|{new}|{read}|{', '.join(name[:90] for name in found) or 'nothing that its name tells'}|", flush=True)


def _profile(member: Member, function: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """`(name, calls, microseconds on the device)` of all that ran."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if member.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        function()
        wait(member.device)
    return [(event.key, event.count, float(getattr(event, "self_device_time_total", 0))) for event in profile.key_averages()]


def profile_block(pair: Pair, policy: Gated) -> None:
    """Launches and the idle share of a guided text, once its graphs are captured."""
    member = pair.member("guide")
    requests = ask(1, 64)

    def write() -> None:
        for _ in engine.generate(pair, policy, requests, batch_size=1):
            pass

    write()
    wait(member.device)
    started = clock()
    write()
    wait(member.device)
    seconds = clock() - started
    events = _profile(member, write)
    busy = sum(microseconds for *_, microseconds in events) / 1e6
    launches = sum(calls for name, calls, _ in events if "launch" in name.lower())
    idle = f", idle share {max(0.0, 1 - busy / seconds):.0%}" if member.device.type == "cuda" else ""
    print(f"\n64 guided tokens: {seconds * 1e3:.1f} ms, {launches} launches{idle}", flush=True)
    for name, calls, microseconds in sorted(events, key=lambda event: -event[2])[:12]:
        print(f"|{name[:100]}|{calls}|{microseconds / 1e3:.2f} ms|")


def run_long(pair: Pair, policy: Gated, rows: int, tokens: int) -> None:
    """Texts of so many tokens: speed and peak memory; first shorter ones, also with too little memory: the batch is halved."""
    logging.basicConfig(level=logging.WARNING)
    device = pair.member("guide").device
    on_gpu, peak, whole = device.type == "cuda", 0.0, 1.0
    for length, scarce in ((tokens // 4, False), (tokens // 4, True), (tokens, False)) if on_gpu else ((tokens, False),):
        for member in pair.members:
            prepare_pass(member).left_reader = None  # with its buffers
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            weights = torch.cuda.memory_allocated(device)
            whole = torch.cuda.get_device_properties(device).total_memory
            allowed = weights + 0.6 * (peak - weights) if scarce else whole
            torch.cuda.set_per_process_memory_fraction(allowed / whole)
        requests = ask(rows, length)
        wait(device)
        started = clock()
        made = [one for _, one in engine.generate(pair, policy, requests, batch_size=rows)]
        wait(device)
        seconds, written = clock() - started, sum(len(one.tokens) for one in made)
        rate = sum(one.takeovers for one in made) / written
        print(f"\n{rows} texts of {length} tokens: {written / seconds:,.0f} tokens/s, {rate:.1%} takeovers", flush=True)
        if on_gpu:
            peak = torch.cuda.max_memory_allocated(device)
            reserved = torch.cuda.max_memory_reserved(device)
            print(
                f"at most {allowed / 1e9:.1f} GB allowed, weights {weights / 1e9:.1f} GB, peak {peak / 1e9:.1f} GB, "
                f"reserved {reserved / 1e9:.1f} GB",
                flush=True,
            )


if __name__ == "__main__":
    main()
