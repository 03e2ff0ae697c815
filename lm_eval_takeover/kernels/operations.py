"""The kernels as operations of torch, which CUDA graphs and dispatch modes support."""

from collections.abc import Iterable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError

MODULES = {  # that have the kernels of each operation
    "draw": "draws", "compute_words": "draws", "read_pair": "readings", "jensen_shannon": "readings", "attend": "attention",
    "normalise": "layers", "rotate": "layers", "activate": "layers",
}  # fmt: skip
_READ = 6  # columns of a model in what `read_pair` returns, behind `ce` and `rkl`

torch.library.define(
    "lm_eval_takeover::draw",
    "(Tensor logits, Tensor words, Tensor rules, bool truncates, bool selects, Tensor? rows) -> (Tensor, Tensor)",
)
torch.library.define("lm_eval_takeover::read_pair", "(Tensor host, Tensor? donor, Tensor? tokens) -> Tensor")
torch.library.define("lm_eval_takeover::jensen_shannon", "(Tensor host, Tensor donor) -> Tensor")
torch.library.define("lm_eval_takeover::compute_words", "(Tensor keys, Tensor positions) -> Tensor")
torch.library.define(
    "lm_eval_takeover::attend", "(Tensor queries, Tensor keys, Tensor values, Tensor mask, float scale) -> Tensor"
)
torch.library.define("lm_eval_takeover::normalise", "(Tensor x, Tensor weight, float eps) -> Tensor")
torch.library.define(
    "lm_eval_takeover::rotate",
    "(Tensor qkv, Tensor? weight, Tensor cosines, Tensor sines, Tensor slots, Tensor positions, Tensor(a!) keys, "
    "Tensor(b!) values, float eps) -> Tensor",
)
torch.library.define("lm_eval_takeover::activate", "(Tensor gate_up) -> Tensor")


class Rules(NamedTuple):
    """How rows are drawn."""

    table: Tensor  # float64 `[rows or 1, 4]` of temperature, top_p, top_k and min_p, on the device
    truncates: bool  # whether any row is cut
    selects: bool  # whether top-p and top-k both cut one

    @classmethod
    def of(cls, samplings: Sequence[Sequence[float]], device: torch.device) -> "Rules":
        """One sampling for all rows, or one a row. The upload is pinned, so the host does not wait."""
        table = torch.tensor(samplings, dtype=torch.float64, pin_memory=device.type == "cuda")
        return cls(table.to(device, non_blocking=True), *cls.find_cuts(samplings))

    @staticmethod
    def find_cuts(samplings: Iterable[Sequence[float]]) -> tuple[bool, bool]:
        drawn = [cuts for temperature, *cuts in samplings if temperature and cuts[1] != 1]
        truncates = any(top_p < 1 or top_k or min_p for top_p, top_k, min_p in drawn)
        return truncates, any(top_p < 1 and top_k for top_p, top_k, _ in drawn)


class ModelRead(NamedTuple):
    """Numbers of one distribution `p`, float32 `[...]`. `rest` and `second` are in units of the likeliest token's weight."""

    entropy: Tensor  # nats
    logprob: Tensor  # of the given token; NaN without one
    rank: Tensor  # of the given token, 1 for the likeliest
    top: Tensor  # the likeliest token, of equal ones the first
    rest: Tensor  # what all other tokens weigh
    second: Tensor  # what the next one weighs


class PairRead(NamedTuple):
    """`ce` and `rkl` in nats, `[...]`, NaN without a donor; each model by itself."""

    ce: Tensor
    rkl: Tensor
    host: ModelRead
    donor: ModelRead


REFUSED: set[torch.device] = set()  # GPUs where the kernels differ from torch, and are not used


def run_on(device: torch.device) -> bool:
    """Whether the kernels run on this device. `cuda` without a number is the current one."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return device.type == "cuda" and device not in REFUSED


def uses_kernels(logits: Tensor) -> bool:
    """Whether these logits are on a device that the kernels run on."""
    return run_on(logits.device)


def draw(logits: Tensor, words: Tensor, rules: Rules, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The race of each word `[count]` (int64) over a row of logits `[..., vocab]`: ids int64, masses float64, both `[count]`.

    rows: int64 `[count]`, the row that each word draws from, -1 for no draw (its token is 0). A mass is the sum of the row's
    weights in units of its likeliest token, before top-k and top-p; 1 if greedy, NaN if no distribution.
    """
    table, *cuts = rules
    asked = None if rows is None else rows.contiguous()
    drawn: tuple[Tensor, Tensor] = torch.ops.lm_eval_takeover.draw(
        _block(logits), words.contiguous(), table.contiguous(), *cuts, asked
    )
    return drawn


def read_pair(host: Tensor, donor: Tensor | None = None, tokens: Tensor | None = None) -> PairRead:
    """The numbers that scores and traces need of logits `[..., vocab]` and tokens `[...]`. Each logit is read once."""
    shape = host.shape[:-1]
    flat = None if tokens is None else tokens.reshape(-1).contiguous()  # kernels read small tensors as contiguous
    columns = torch.ops.lm_eval_takeover.read_pair(_block(host), None if donor is None else _block(donor), flat)
    ce, rkl, *models = columns.view(*shape, 2 + 2 * _READ).unbind(-1)
    return PairRead(ce, rkl, ModelRead(*models[:_READ]), ModelRead(*models[_READ:]))


def jensen_shannon(host: Tensor, donor: Tensor) -> Tensor:
    """The divergence of logits `[..., vocab]` in nats: float32 `[...]`."""
    divergence: Tensor = torch.ops.lm_eval_takeover.jensen_shannon(_block(host), _block(donor))
    return divergence.view(host.shape[:-1])


def compute_words(keys: Tensor, positions: Tensor) -> Tensor:
    """The words, int64 `[...]`, of positions `[...]` (at least 0) under keys `[..., 2]`, int64 of the same bits."""
    every = keys.expand(*positions.shape, 2).reshape(-1, 2).contiguous()
    words: Tensor = torch.ops.lm_eval_takeover.compute_words(every, positions.reshape(-1).contiguous())
    return words.view(positions.shape)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of queries `[rows, new, heads, dim]`: of the same shape. Each query must see a column; `dim` is a power of two.

    keys, values: `[rows, kv_heads, columns, dim]`. mask: `[rows, 1, new, columns]`, added to the scores.
    """
    attended: Tensor = torch.ops.lm_eval_takeover.attend(queries, keys, values, mask, scale)
    return attended


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The RMS norm of x `[tokens, size]`, times weight `[size]`."""
    normed: Tensor = torch.ops.lm_eval_takeover.normalise(x, weight, eps)
    return normed


def rotate(
    qkv: Tensor,
    weight: Tensor | None,
    rotations: tuple[Tensor, Tensor],
    places: tuple[Tensor, Tensor],
    buffers: tuple[Tensor, Tensor],
    eps: float,
) -> Tensor:
    """Rotate queries and keys, after the norm of each head if there is one, and write keys and values into the cache.

    qkv: `[rows, new, heads + 2 kv_heads, dim]`, `dim` a power of two. weight: of the norms, `[heads + kv_heads, dim]`. rotations:
    cos and signed sin by position, `[positions, 1, dim]` each. places: each row's slot `[rows]` and each token's column
    `[rows, new]`. buffers: keys and values `[slots, columns, kv_heads, dim]`. Returns queries `[rows, new, heads, dim]`.
    """
    queries: Tensor = torch.ops.lm_eval_takeover.rotate(qkv, weight, *rotations, *places, *buffers, eps)
    return queries


def activate(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of both, `[tokens, 2 size]`: `[tokens, size]`."""
    activated: Tensor = torch.ops.lm_eval_takeover.activate(gate_up)
    return activated


def _block(logits: Tensor) -> Tensor:
    """Logits as `[blocks, width, vocab]`, without a copy for two or three dimensions. Tokens of a row are contiguous."""
    block = logits if logits.dim() == 3 else logits.reshape(-1, 1, logits.shape[-1])
    return block if block.stride(-1) == 1 else block.contiguous()


def launch(name: str, *arguments: Any) -> Any:
    """Run a kernel function by name, with its first argument's device as current. The first call imports its module."""
    try:
        kernels = import_module(f"lm_eval_takeover.kernels.{MODULES[name]}")
    except ImportError as error:
        raise ArgumentError(
            "device=cuda draws with Triton, which is not installed; `pip install triton`, or give device=cpu"
        ) from error
    with torch.cuda.device(arguments[0].device):
        return getattr(kernels, name)(*arguments)


for _name in MODULES:
    torch.library.impl(f"lm_eval_takeover::{_name}", "CUDA")(partial(launch, _name))
