"""Pairs of random weights in the shapes of real ones, what their passes cost, and the bounds that follow."""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3_5TextConfig, Qwen3Config

from lm_eval_takeover.decoding import engine
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import take_reader
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Gated
from lm_eval_takeover.method.request import Request, Sampling
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

SHAPES = {  # hidden size, layers, intermediate size, heads
    "base": (256, 6, 768, 4),
    "1:1": (256, 6, 768, 4),
    "1:4": (512, 7, 1536, 8),
    "1:13": (768, 11, 2304, 12),
    "1:26": (1024, 13, 3072, 16),
    "qwen3-0.6b": (1024, 28, 3072, 16),
    "qwen3-8b": (4096, 36, 12288, 32),
}
SAMPLING = Sampling(1.0)
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@contextmanager
def pair_folders(name: str, vocab: int, dtype: str, entropy: float | None = None) -> Iterator[dict[str, Path]]:
    """The folders of a pair by its name: the bundled one for "demo", else random weights, which are gone afterwards.

    "qwen3" always has its own vocabulary, and distributions of half a nat unless another entropy is asked.

    RANDOM_PAIRS in the environment names a folder where they stay, for the next program.
    """
    if name == "demo":
        yield dict(DEMO)
        return
    if name == "qwen3":
        vocab, entropy = 151_936, entropy or 0.5
    if kept := os.environ.get("RANDOM_PAIRS"):
        place = Path(kept) / f"{name}-{vocab}-{dtype}-{entropy}".replace(":", "-")
        if not (place / "whole").exists():
            save_pair(place, name, vocab, getattr(torch, dtype), entropy)
            (place / "whole").touch()
        yield {role: place / role for role in ("base", "guide")}
        return
    with tempfile.TemporaryDirectory() as folder:
        yield save_pair(Path(folder), name, vocab, getattr(torch, dtype), entropy)


def save_pair(folder: Path, ratio: str, vocab: int, dtype: torch.dtype, entropy: float | None = None) -> dict[str, Path]:
    """Two random checkpoints that share the demo pair's tokenizer, padded to `vocab`; `hybrid` is 1:26 as Qwen3.5 builds it.

    `entropy` in nats: their distributions are made as peaked as that, on the mean over a random text.
    """
    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    made = {}
    shapes = ("qwen3-0.6b", "qwen3-8b") if ratio == "qwen3" else ("base", "1:26" if ratio == "hybrid" else ratio)
    for seed, (role, shape) in enumerate(zip(("base", "guide"), shapes, strict=True)):
        hidden, layers, inner, heads = SHAPES[shape]
        real = ratio == "qwen3"
        torch.manual_seed(seed)
        kind, more = Qwen3Config, {}
        if ratio == "hybrid":  # one layer in four of full attention, the others gated delta rules
            delta = {"linear_num_key_heads": heads, "linear_num_value_heads": heads}
            kind, more = Qwen3_5TextConfig, delta | {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
        config = kind(
            vocab_size=vocab, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=inner,
            num_attention_heads=heads, num_key_value_heads=8 if real else heads // 2,
            head_dim=128 if real else 64, tie_word_embeddings=shape != "qwen3-8b",
            max_position_embeddings=2**15, initializer_range=0.08, eos_token_id=None, bos_token_id=None,
            **more,
        )  # fmt: skip
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = AutoModelForCausalLM.from_config(config)
        if entropy is not None:
            sharpen(model, entropy)
        model = model.to(dtype)
        made[role] = folder / role
        model.save_pretrained(made[role])
        tokenizer.save_pretrained(made[role])
    return made


@torch.inference_mode()
def sharpen(model: PreTrainedModel, entropy: float) -> None:
    """Scale the last norm of a model, and so its logits, until the mean entropy of a random text is this."""
    logits = model(torch.randint(0, 500, (1, 64), device=model.device)).logits[0]
    low, high = 0.1, 100.0
    for _ in range(30):
        scale = (low * high) ** 0.5
        log_p = (scale * logits).log_softmax(-1)
        flat = float(-(log_p.exp() * log_p).sum(-1).mean()) > entropy
        low, high = (scale, high) if flat else (low, scale)
    model.model.norm.weight.mul_(scale)


def load(folders: dict[str, Path], device: str, dtype: str) -> Pair:
    made = (Member(role, str(folders[role]), device=device, dtype=getattr(torch, dtype)) for role in ("base", "guide"))
    pair = Pair(*made)
    for member in pair.members:
        _ = member.model  # now: the folders may go
    return pair


@dataclass
class Costs:
    """Seconds of passes: `alone` one model again and again; `turns` a draft of k base passes and then the guide's over k.

    Each is (b, the base over one token; G by k, the guide over k tokens). In turns the guide's weights drive those of the base
    out of the processor's caches, as they do in any engine.
    """

    alone: tuple[float, dict[int, float]]
    turns: tuple[float, dict[int, float]]


@torch.inference_mode()
def costs(pair: Pair, batch: int, length: int, repeats: int = 9) -> Costs:
    """What passes cost for `batch` rows that have read `length` tokens: medians of so many."""
    vocab = min(member.model.config.vocab_size for member in pair.members)
    readers = {member.role: take_reader(prepare_pass(member), batch, vocab) for member in pair.members}
    for reader in readers.values():
        prompts = reader.prefill(torch.randint(0, 500, (batch, length)).tolist())
        for row in range(batch):
            reader.copy_row(prompts, row, row)

    def seconds(role: str, k: int) -> float:
        ids = torch.randint(0, 500, (batch, k), device=readers[role].device)
        wait(readers[role].device)
        started = clock()
        readers[role].read(range(batch), ids)
        wait(readers[role].device)
        return clock() - started

    median = statistics.median
    alone = (
        median(seconds("base", 1) for _ in range(3 * repeats)),
        {k: median(seconds("guide", k) for _ in range(repeats)) for k in BLOCKS},
    )
    base, guide = [], {}
    for k in BLOCKS:
        checks = []
        for _ in range(repeats):
            base.append(sum(seconds("base", 1) for _ in range(k)) / k)
            checks.append(seconds("guide", k))
        guide[k] = median(checks)
    return Costs(alone, (median(base), guide))


def clock() -> float:
    """Seconds; on one thread of a CPU those that it computed, which other work on the machine does not stretch."""
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time() if alone else time.perf_counter()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def blind(b: float, guide: dict[int, float], rate: float) -> tuple[float, int]:
    """Seconds per token of the best fixed block, and that block."""
    return min(((k * b + seconds) * rate / (1 - (1 - rate) ** k), k) for k, seconds in guide.items())


def blind_on(b: float, guide: dict[int, float], taken_over: Sequence[Sequence[bool]]) -> float:
    """As `blind` for texts whose takeovers fell as these did: seconds per token, without the luck of a short run."""
    return min(
        sum(blocks(taken, k) for taken in taken_over) * (k * b + seconds) / sum(map(len, taken_over))
        for k, seconds in guide.items()
    )


def blocks(taken_over: Sequence[bool], k: int) -> int:
    """How many blocks of `k` a text takes that is taken over at these places."""
    count = place = 0
    while place < len(taken_over):
        block = taken_over[place : place + k]
        place += block.index(True) + 1 if True in block else len(block)
        count += 1
    return count


def gated(pair: Pair, requests: list[Request], rate: float, score: str = "ce", rounds: int = 4) -> Gated:
    """A policy whose gate, without window test, realizes about this rate."""
    policy = Gated(score=score, gate=Gate(1e9))
    for _ in range(rounds):
        made = [one for _, one in engine.generate(pair, policy, requests, batch_size=16)]
        scores = torch.tensor([score for one in made for score in one.scores])
        policy = replace(policy, gate=Gate(float(scores.double().quantile(1 - rate))))
    return policy
