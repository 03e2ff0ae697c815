"""What passes cost on this machine: its line for the table of `decoding/costs.py`, and the passes of a pair beside the model.

    python benchmarks/pass_costs.py [--device cuda] [--dtype bfloat16] [--pair demo]

Random weights stand for models. `launch` is from many small layers, `weights` from one token through large ones, `arithmetic`
and `cache` from what more tokens and more columns take there, `token` from what more tokens take in the small layers, `draw` and
`entries` from draws of one row and of several. With grouped queries `token` is larger; `draw` leaves out the host's books, and
`block` is missing: the table has what passes and runs of the demo pair take. On one thread of a CPU, seconds are of processor
time. Medians of `--rounds`.
"""

import argparse
import platform
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from random_pairs import clock, costs, load, pair_folders, wait
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config

from lm_eval_takeover.decoding.costs import Machine, PassCost, find_machine
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import take_reader
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_rows, drawing
from lm_eval_takeover.pair.member import Member

VOCAB = 151_936
TOKENS = 64  # of the passes whose arithmetic is timed
SMALL = {"hidden_size": 64, "num_hidden_layers": 48, "intermediate_size": 64, "num_attention_heads": 1}
LARGE = {
    "cpu": {"hidden_size": 1024, "num_hidden_layers": 8, "intermediate_size": 3072, "num_attention_heads": 16},
    "cuda": {"hidden_size": 4096, "num_hidden_layers": 12, "intermediate_size": 12288, "num_attention_heads": 32},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--pair", default="demo", choices=["demo", "1:13", "1:26", "qwen3"])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"{name}, {options.dtype}, {torch.get_num_threads()} threads")
    machine = measure(device, dtype, options.rounds)
    numbers = ", ".join(f"{field}={getattr(machine, field):.2g}" for field in Machine.__slots__)
    print(f"measured: Machine({numbers})")
    table = find_machine(device, dtype)
    print("table:    Machine(" + ", ".join(f"{field}={getattr(table, field):.2g}" for field in Machine.__slots__) + ")")
    compare(options)


@torch.inference_mode()
def measure(device: torch.device, dtype: torch.dtype, rounds: int) -> Machine:
    """The machine as its passes show it."""
    sizes = LARGE[device.type]
    with tempfile.TemporaryDirectory() as folder:
        small, large = (make(Path(folder) / str(number), size, device, dtype) for number, size in enumerate((SMALL, sizes)))
        single, more = (time_pass(small, 1, new, 256, rounds) for new in (1, TOKENS))
        launch = time_pass(small, 1, 1, 64, rounds) / SMALL["num_hidden_layers"]
        few, many = 256, 2048
        one = time_pass(large, 1, 1, few, rounds)
        tokens = time_pass(large, 1, TOKENS, few, rounds)
        rows = 8
        short, long = (time_pass(large, rows, 1, columns, rounds) for columns in (few, many))
    table = find_machine(device, dtype)
    least, most = (PassCost.of(prepare_pass(member)) for member in (small, large))
    read = (most.fixed - sizes["num_hidden_layers"] * table.launch) * table.weights  # bytes of its weights
    columns = rows * (many - few) * most.per_column * table.cache  # bytes of its cache
    written = [cost.per_column * table.cache for cost in (least, most)]  # bytes of a token's keys and values
    products = [cost.per_token - size * table.token for cost, size in zip((least, most), written, strict=True)]  # seconds
    token = ((more - single) / (TOKENS - 1) - products[0]) / written[0]
    row, several = (time_draw(count, device, rounds) for count in (1, 8))
    return Machine(
        launch=launch,
        weights=read / max(one - sizes["num_hidden_layers"] * launch, 1e-9),
        cache=columns / max(long - short, 1e-9),
        arithmetic=products[1] * table.arithmetic / max((tokens - one) / (TOKENS - 1) - token * written[1], 1e-9),
        draw=time_draw(1, device, rounds, vocab=512),
        entries=7 * VOCAB / max(several - row, 1e-9),
        token=token,
    )


def make(folder: Path, size: dict[str, int], device: torch.device, dtype: torch.dtype) -> Member:
    """A model of random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=512, head_dim=64, num_key_value_heads=max(1, size["num_attention_heads"] // 2), **size)
    with device:
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(DEMO["base"]).save_pretrained(folder)
    member = Member("base", str(folder), device=str(device), dtype=dtype)
    _ = member.model
    return member


def time_pass(member: Member, rows: int, new: int, columns: int, rounds: int) -> float:
    """Seconds of a pass over `new` tokens of each row, of which each has read so many."""
    reader = take_reader(prepare_pass(member), rows, 512, 4096)
    prompts = reader.prefill([[7] * (columns - TOKENS)] * rows)
    for row in range(rows):
        reader.copy_row(prompts, row, row)
    ids = torch.full((rows, new), 5, device=reader.device)
    return median(lambda: reader.read(range(rows), ids), reader.device, rounds)


def time_draw(rows: int, device: torch.device, rounds: int, vocab: int = VOCAB) -> float:
    """Seconds of one draw of each of so many rows, as peaked as a trained model's."""
    logits = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)).to(device)
    words, sampling = torch.arange(rows, device=device) * 2**40, Sampling(0.6, 0.95)
    with drawing():
        return median(lambda: draw_rows(logits, words, sampling), device, rounds)


def median(run: Callable[[], Any], device: torch.device, rounds: int) -> float:
    seconds = []
    for _ in range(rounds + 2):  # the first ones warm up, or capture a graph
        wait(device)
        started = clock()
        run()
        wait(device)
        seconds.append(clock() - started)
    return statistics.median(seconds[2:])


def compare(options: argparse.Namespace) -> None:
    """The passes of a pair, measured and by the table."""
    with pair_folders(options.pair, 8192, options.dtype) as folders:
        pair = load(folders, options.device, options.dtype)
        print(f"\npair {options.pair}, batch 1\n\n|pass|measured, ms|the table, ms|\n|---|--:|--:|")
        b, guide = costs(pair, 1, 256, options.rounds).turns
    base, donor = (PassCost.of(prepare_pass(member)) for member in pair.members)
    rows = {"base, 1 token": (b, base.seconds(1, 256))}
    rows |= {f"guide, {k} tokens": (guide[k], donor.seconds(k, 256)) for k in (1, 6, 12, 24)}
    for name, (found, modelled) in rows.items():
        print(f"|{name}|{found * 1e3:.2f}|{modelled * 1e3:.2f}|")
    print(f"|b / G(1)|{b / guide[1]:.2f}|{base.seconds(1, 256) / donor.seconds(1, 256):.2f}|")


if __name__ == "__main__":
    main()
