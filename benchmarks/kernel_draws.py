"""What the kernels of draws do, without a GPU: their tokens beside those of a CPU, and their operations and bytes.

    TRITON_INTERPRET=1 python benchmarks/kernel_draws.py [--draws 100000] [--vocab 151936]

First so many draws, of all kinds of logits and settings, in Triton's interpreter and by numpy. Near ties are races whose second
token is within a share of the first, in `E / p`. Within 1e-6 they may end otherwise on a GPU, which rounds differently.
Then a draw of a real vocabulary: launches, and the bytes of their loads and stores, which the interpreter counts.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import helpers.interpreter  # type: ignore[import-not-found]  # noqa: F401  # makes it fast

from lm_eval_takeover.kernels import draws, operations
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw_on_cpu, drawing, token_numbers

VOCABS = (33, 97, 151, 257)
NEAR = (1e-6, 1e-5, 1e-4)
ROWS = 512
WORDS = [(word * 0x9E3779B97F4A7C15) % 2**63 for word in range(1, 6)]
SETTINGS = [
    Sampling(temperature, top_p, top_k, min_p)
    for temperature in (0.0, 0.3, 1.0, 2.0)
    for top_p in (1.0, 0.95, 0.5, 0.1)
    for top_k in (0, 1, 5, 10_000)
    for min_p in (0.0, 0.05)
]


class Traffic:
    """Launches of kernels, and the bytes that they load and store."""

    launches = bytes = 0


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    builder, function, traffic = InterpreterBuilder, InterpretedFunction, Traffic()
    kept, run = (builder.create_masked_load, builder.create_masked_store), function.run

    def load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        traffic.bytes += pointers.get_element_ty().primitive_bitwidth // 8 * int(mask.data.sum())
        return kept[0](self, pointers, mask, *rest)

    def store(self: Any, pointers: Any, values: Any, mask: Any, *rest: Any) -> Any:
        traffic.bytes += pointers.get_element_ty().primitive_bitwidth // 8 * int(mask.data.sum())
        return kept[1](self, pointers, values, mask, *rest)

    def launch(self: Any, *arguments: Any, **options: Any) -> Any:
        traffic.launches += 1
        return run(self, *arguments, **options)

    function.run, builder.create_masked_load, builder.create_masked_store = launch, load, store
    try:
        yield traffic
    finally:
        function.run, (builder.create_masked_load, builder.create_masked_store) = run, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--vocab", type=int, default=151_936)
    options = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    compare(options.draws)
    count(options.vocab)


def place_rules(*samplings: Sampling) -> operations.Rules:
    return operations.Rules.of([astuple(one) for one in samplings], torch.device("cpu"))


def make_logits(vocab: int, generator: torch.Generator, rows: int = ROWS) -> Tensor:
    """Rows of all kinds: flat, sharp and certain, equal tokens, tokens that are ruled out, nuclei of one token."""
    logits = torch.randn(rows, vocab, generator=generator)
    logits *= torch.tensor([0.0, 0.5, 3.0, 12.0]).repeat(rows)[:rows, None]
    logits[:, 0] = logits[:, -1]
    logits[::5, vocab // 3] = -torch.inf
    logits[1::7, : vocab // 2] = -torch.inf
    logits[2::11, vocab // 4] = 60.0
    return logits


def compare(number: int) -> None:
    generator, numbers = torch.Generator().manual_seed(0), np.random.default_rng(0)
    done = different = 0
    near = np.zeros(len(NEAR), dtype=int)
    started = time.process_time()
    while done < number:
        how = SETTINGS[done // ROWS % len(SETTINGS)]
        vocab = VOCABS[done // ROWS // len(SETTINGS) % len(VOCABS)]
        logits = make_logits(vocab, generator).to((torch.float32, torch.bfloat16)[done // ROWS % 2])
        at = numbers.integers(0, 2**64, ROWS, dtype=np.uint64)
        with drawing():
            expected = draw_on_cpu(logits.float().numpy(), at, how)[0]
        words = torch.from_numpy(at.view(np.int64))
        found, _ = draws.draw(logits[:, None], words, *place_rules(how), None, rows=ROWS, tile=128)
        different += int((found.numpy() != expected).sum())
        if how.temperature and how.top_k != 1:
            near += count_near_ties(logits.float().numpy(), at, how)
        done += ROWS
    print(f"{done} draws, {len(SETTINGS)} settings, vocabularies of {', '.join(map(str, VOCABS))}: {different} differ")
    ties = ", ".join(f"{count} within {share:g}" for count, share in zip(near, NEAR, strict=True))
    print(f"near ties among them: {ties} ({time.process_time() - started:.0f} s)")


def count_near_ties(logits: np.ndarray[Any, Any], at: np.ndarray[Any, Any], how: Sampling) -> np.ndarray[Any, Any]:
    """Over all tokens, as if none was cut off."""
    ids = np.arange(logits.shape[1])
    u = (np.stack([token_numbers(ids, int(word)) for word in at]) + 0.5) * 2.0**-32
    keys = np.log(-np.log(u)) - logits.astype(np.float64) / how.temperature
    first, second = np.partition(keys, 1, axis=1)[:, :2].T
    return np.array([int((second - first < share).sum()) for share in NEAR])


def count(vocab: int) -> None:
    logits = (torch.randn(1, vocab, generator=torch.Generator().manual_seed(1)) * 3).bfloat16()
    print(f"one draw of {vocab} bfloat16 logits, mean of {len(WORDS)}: launches, bytes a token")
    for how in (Sampling(1.0), Sampling(0.6, 0.95), Sampling(0.6, 0.95, 20)):
        with count_traffic() as traffic:
            for word in WORDS:
                draws.draw(logits[:, None], torch.tensor([word]), *place_rules(how), None)
        print(f"{how}: {traffic.launches // len(WORDS)}, {traffic.bytes / len(WORDS) / vocab:.1f}")


if __name__ == "__main__":
    main()
