"""Emission, equations (5) and (6) on the rows of one batch: who writes the next tokens, which tokens, and a record of each.

Used by blocks on transformers and by the gate inside vLLM, in fixed shapes. Nothing here waits for the device.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.kernels.operations import Rules
from lm_eval_takeover.method.policy import Block, Policy
from lm_eval_takeover.method.reading import PairReading, compare, judge_tokens
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import COMPARED, OBSERVED, Sampling
from lm_eval_takeover.method.sampling import draw_rows as draw
from lm_eval_takeover.method.sampling import drawing

# Columns of a record. From `REST` on: `OBSERVED` for traces, `FORCED` for forced tokens, or more columns for all scores.
SCORE, TAKEN, REST = 0, 1, 2
FORCED = ("log_prob", "greedy")
_WORDS = 64
_PIECE = 2**18  # logits of a model that a CPU works on at a time
_LARGE_PIECE = 2**26  # the same on a GPU, where a score or a mix in torch copies them
COLUMNS = REST + max(len(OBSERVED), len(FORCED))


def count_scored(compared: bool) -> int:
    """The number of columns in records of `score_all` or `compare_forced`, with plug-ins' scores."""
    return REST + len(registered.names()) + compared * len(COMPARED)


@dataclass(frozen=True, slots=True)
class Emitted:
    """The next tokens of some rows. tokens `[rows, k]`, records `[rows, k, COLUMNS]` float32."""

    tokens: Tensor
    records: Tensor


def emit(
    policy: Policy,
    rules: Rules,
    host: Tensor | None,
    donor: Tensor | None,
    block: Block,
    at: Tensor,
    *,
    drafted: Tensor | None = None,
    forced: Tensor | None = None,
    live: Tensor | None = None,
    traced: bool = False,
) -> Emitted:
    """The tokens of positions `block.positions` `[rows, k]`, each decided as if all tokens before it stood.

    rules: sampling of each row. host, donor: raw logits `[rows, k, vocab]`, None if the policy has no such model. block: its
    scores are not read. at: the words `[rows, k]`, int64. drafted `[rows, k]`: the host's draws, if known. forced `[rows, k]`:
    tokens to emit whatever is drawn, recorded with their log-probability under the model that writes. live `[rows, k]`: the
    positions that count; elsewhere tokens are arbitrary.
    """
    if host is not None and drafted is None and forced is None:
        drafted = draw_rows(host, at, rules)
    hosted = drafted if forced is None else forced  # forced tokens stand for the host's draws
    scores = by_pieces(policy.scores, host, donor, hosted if policy.needs_token else None)
    taken = policy.decide(replace(block, scores=scores, tokens=hosted))
    records = torch.full((*scores.shape, COLUMNS), torch.nan, device=scores.device)
    if forced is not None:
        tokens = forced
        records[..., REST : REST + len(FORCED)] = _judge(policy, taken, host, donor, forced)
    else:
        # Where the donor draws; None: everywhere.
        drawn_rows = live if host is None else taken if live is None else taken & live
        replace_taken = partial(_replace_taken, policy, rules)
        tokens = by_pieces(replace_taken, rules.table, host, donor, drafted, drawn_rows, at)
    if policy.mixes and hosted is not None:
        taken = taken & (tokens != hosted)
    records[..., SCORE], records[..., TAKEN] = scores, taken
    if traced:
        observed = by_pieces(policy.observe, tokens, host, donor, None if host is None else drafted)
        records[..., REST : REST + len(OBSERVED)] = observed
    return Emitted(tokens, records)


def count_standing(emitted: Tensor, drafted: Tensor, lengths: Tensor, *, bonus: bool) -> tuple[Tensor, Tensor]:
    """How many tokens `[rows]` stand of each draft, and whether its last one is another than was drafted: bool `[rows]`.

    emitted, drafted: `[rows, k]`, of which the first `lengths` `[rows]` were drafted. bonus: a draft that stands gives one token
    more. Needs no value on the host.
    """
    places = torch.arange(drafted.shape[1], device=drafted.device)
    differs = (emitted != drafted) & (places < lengths[:, None])
    ended = differs.any(1)
    return torch.where(ended, differs.byte().argmax(1) + 1, lengths + bonus), ended


def share(logits: Tensor, vocab: int) -> Tensor:
    """Logits `[..., vocab]` of the shared vocabulary. Float32 unless kernels read them."""
    logits = logits[..., :vocab]
    return logits if kernels.uses_kernels(logits) else logits.float()


def list_logits(logits: Tensor, base_logits: Tensor | None, roles: Sequence[str], vocab: int) -> dict[str, Tensor]:
    """Logits by role, `[rows, 1, vocab]`. logits: the guide's, or without `base_logits` those of the only model."""
    by_role = {roles[0]: logits} if base_logits is None else {"base": base_logits, "guide": logits}
    return {role: share(own, vocab)[:, None] for role, own in by_role.items()}


def read_all(scores: Sequence[Score], base_logits: Tensor, guide_logits: Tensor, tokens: Tensor) -> Tensor:
    """These scores with the base as host, then `COMPARED`: float32 `[..., scores + 8]`."""
    reading = PairReading(base_logits, guide_logits, tokens)
    return torch.cat([torch.stack([score.of(reading) for score in scores], -1), compare(reading)], -1)


def score_all(host: Tensor, donor: Tensor, tokens: Tensor) -> Tensor:
    """All registered scores, in the order of their names: `[rows, k, scores]` from logits `[rows, k, vocab]`."""
    reading = PairReading(host, donor, tokens)
    return torch.stack([score.of(reading) for score in registered], -1)


def compare_forced(base: Tensor, guide: Tensor, forced: Tensor) -> Emitted:
    """As `emit`, for given tokens `[rows, k]`. Records all registered scores with the base as host, then `COMPARED`."""
    own = torch.full((*forced.shape, REST), torch.nan, device=forced.device)
    return Emitted(forced, torch.cat([own, read_all([*registered], base, guide, forced)], -1))


def draw_rows(logits: Tensor, at: Tensor, rules: Rules, asked: Tensor | None = None) -> Tensor:
    """The race: token ids `[rows, k]` from logits `[rows, k, vocab]` and words `[rows, k]`, int64. 0 where not asked."""

    def race(logits: Tensor, at: Tensor, table: Tensor, asked: Tensor | None) -> Tensor:
        words, count = at.flatten(), at.shape[1]
        if kernels.uses_kernels(logits):
            places = torch.arange(len(words), device=words.device)
            rows = None if asked is None else torch.where(asked.flatten(), places, -1)
            table = table[:, None].expand(-1, count, -1).reshape(-1, table.shape[1])
            return kernels.draw(logits, words, rules._replace(table=table), rows)[0].view(at.shape)
        flat = logits.reshape(-1, logits.shape[-1])
        samplings = [Sampling(temperature, top_p, int(top_k), min_p) for temperature, top_p, top_k, min_p in table.tolist()]
        if asked is None and len(set(samplings)) == 1:
            return draw(flat, words, samplings[0])[0].view(at.shape)
        tokens = torch.zeros_like(words)
        for sampling in set(samplings):
            alike = torch.tensor([own == sampling for own in samplings]).repeat_interleave(count)
            alike = alike if asked is None else alike & asked.flatten()
            tokens[alike] = draw(flat[alike], words[alike], sampling)[0]
        return tokens.view(at.shape)

    with nullcontext() if kernels.uses_kernels(logits) else drawing():
        return by_pieces(race, logits, at, rules.table, asked)


def compute_words(keys: Tensor, positions: Tensor) -> Tensor:
    """The words int64 `[rows, k]` of positions `[rows, k]` under keys `[rows, 2]`."""
    if kernels.uses_kernels(keys):
        return kernels.compute_words(keys[:, None], positions)
    words = [
        _list_words(key.tobytes(), place // _WORDS)[place % _WORDS]
        for key, places in zip(keys.numpy(), positions.tolist(), strict=True)
        for place in places
    ]
    return torch.from_numpy(np.array(words).view(np.int64)).view(positions.shape)


@lru_cache(maxsize=2**12)
def _list_words(key: bytes, block: int) -> NDArray[np.uint64]:
    generator = np.random.Philox(key=np.frombuffer(key, np.uint64))
    return np.asarray(generator.advance(block * _WORDS // 4).random_raw(_WORDS))  # four words a count


def by_positions(compute: Callable[..., Tensor], *parts: Tensor | None) -> Tensor:
    """As `by_pieces`, of parts `[rows, columns, ...]` of a function that reads each position by itself."""
    flat = [None if part is None else part.flatten(0, 1)[:, None] for part in parts]
    values = by_pieces(compute, *flat)
    shape = next(part for part in parts if part is not None).shape[:2]
    return values.view(*shape, *values.shape[2:])


def by_pieces(compute: Callable[..., Tensor], *rows: Tensor | None) -> Tensor:
    """Apply a function to a few rows at a time, which fit a CPU's cache or take little of a GPU's memory."""
    logits = next(part for part in rows if part is not None and part.dim() == 3)
    piece = _PIECE if logits.device.type == "cpu" else _LARGE_PIECE
    step = max(1, piece // max(1, logits[0].numel()))
    if step >= len(logits):
        return compute(*rows)
    starts = range(0, len(logits), step)
    return torch.cat([compute(*(None if part is None else part[i : i + step] for part in rows)) for i in starts])


def _replace_taken(
    policy: Policy,
    rules: Rules,
    table: Tensor,
    host: Tensor | None,
    donor: Tensor | None,
    drafted: Tensor | None,
    asked: Tensor | None,
    at: Tensor,
) -> Tensor:
    """The drafted tokens, replaced by the donor's draws where asked. table: of `rules`, for these rows."""
    if donor is None or (donor.device.type == "cpu" and asked is not None and not bool(asked.any())):
        assert drafted is not None
        return drafted
    words = at if asked is None else policy.choose_words(at, asked)
    drawn = draw_rows(_mix(policy, host, donor), words, rules._replace(table=table), asked)
    return drawn if asked is None or drafted is None else torch.where(asked, drawn, drafted)


def _mix(policy: Policy, host: Tensor | None, donor: Tensor) -> Tensor:
    return policy.mix(host.float(), donor.float()) if policy.mixes and host is not None else donor


def _judge(policy: Policy, taken: Tensor, host: Tensor | None, donor: Tensor | None, tokens: Tensor) -> Tensor:
    """`FORCED` of tokens `[rows, k]` under the model that writes each: `[rows, k, 2]`."""

    def judge(host: Tensor | None, donor: Tensor | None, taken: Tensor, tokens: Tensor) -> Tensor:
        writers = (host, donor if donor is None else _mix(policy, host, donor))
        judged = [judge_tokens(logits, tokens) for logits in writers if logits is not None]
        return torch.where(taken[..., None], judged[-1], judged[0])

    return by_pieces(judge, host, donor, taken, tokens)
