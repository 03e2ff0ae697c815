"""What the arithmetic of docs/gpu.md assumes, one figure each, on the device that there is.

    python benchmarks/gpu_parts.py [--device cuda] [--pair qwen3] [--dtype bfloat16]

Milliseconds of a draw at 1, 8, 64 and 256 rows; of a pass over one token and over twelve, replayed, at 256 and 8,192 columns; of
the first call of a shape, which captures it; and the kernels of a pass, by layer. The same code runs anywhere with
`--device cpu --pair demo --dtype float32`.
"""

import argparse
import statistics

import torch
from pass_costs import time_draw
from random_pairs import clock, load, pair_folders, wait

from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import take_reader
from lm_eval_takeover.pair.member import Member


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pair", default="qwen3", choices=["demo", "1:13", "1:26", "qwen3"])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256], help="of a draw")
    parser.add_argument("--columns", type=int, nargs="+", default=[256, 8192])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    device = torch.device(options.device)
    print("|draw, rows|ms|\n|--:|--:|")
    for rows in options.rows:
        print(f"|{rows}|{time_draw(rows, device, options.rounds) * 1e3:.3f}|", flush=True)
    print("\n|pass, one row|columns|first call, ms|then, ms|\n|---|--:|--:|--:|")
    with pair_folders(options.pair, 8192, options.dtype) as folders:
        pair = load(folders, options.device, options.dtype)
    for member in pair.members:
        for columns in options.columns:
            for new in (1, 12):
                first, then = time_first_and_next(member, new, columns, options.rounds)
                print(f"|{member.role}, {new} tokens|{columns}|{first * 1e3:.1f}|{then * 1e3:.3f}|", flush=True)
    with torch.inference_mode():
        for member in pair.members:
            print_kernels(member, device)


@torch.inference_mode()
def time_first_and_next(member: Member, new: int, columns: int, rounds: int) -> tuple[float, float]:
    """Seconds of the first pass of this shape, and the median of those that follow; just below so many columns."""
    reader = take_reader(prepare_pass(member), 1, 512, columns + 64)
    reader.copy_row(reader.prefill([[7] * (columns - 64)]), 0, 0)
    ids = torch.full((1, new), 5, device=reader.device)

    def seconds() -> float:
        wait(reader.device)
        started = clock()
        reader.read([0], ids)
        wait(reader.device)
        return clock() - started

    return seconds(), statistics.median(seconds() for _ in range(rounds))


def print_kernels(member: Member, device: torch.device) -> None:
    """What a pass over one token runs, by the time it takes: kernels on a GPU, torch's operations elsewhere."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    reader = take_reader(prepare_pass(member), 1, 512, 256)
    reader.copy_row(reader.prefill([[7] * 128]), 0, 0)
    ids = torch.full((1, 1), 5, device=device)
    reader.read([0], ids)
    with torch.profiler.profile(activities=activities) as profile:
        reader.read([0], ids)
        wait(device)
    seconds = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    ran = [event for event in profile.key_averages() if getattr(event, seconds) > 0]
    layers, launched = len(reader.forward.windows), sum(event.count for event in ran)
    print(f"\n{member.role}, one token: {launched} launches, {launched / layers:.1f} a layer\n")
    print("|runs|a layer|each, µs|\n|---|--:|--:|")
    for event in sorted(ran, key=lambda event: -getattr(event, seconds))[:16]:
        print(f"|{event.key[:80]}|{event.count / layers:.2f}|{getattr(event, seconds) / event.count:.1f}|")


if __name__ == "__main__":
    main()
