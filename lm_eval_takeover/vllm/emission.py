"""Who writes the next tokens and which: equations (5) and (6) on the rows of one batch, in fixed shapes.

Pure functions of logits and numbers, the same that `decoding` calls: scores, the policy's decision, the race. Nothing here waits
for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lm_eval_takeover.method.observations import COMPARED, OBSERVED, compare, observe
from lm_eval_takeover.method.policy import Block, Policy
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.method.sampling import draw
from lm_eval_takeover.method.sampling import draw_rows as draw_each
from lm_eval_takeover.method.scores import log_probs

# Columns of a record. The rest are `OBSERVED` for traces, `FORCED` for forced tokens; all scores of calibrations take more.
SCORE, TAKEN, REST = 0, 1, 2
FORCED = ("log_prob", "greedy")
_PIECE = 2**18  # logits of a model that a CPU works on at a time
COLUMNS = REST + max(len(OBSERVED), len(FORCED))


def count_scored(compared: bool) -> int:
    """Columns of the records of `score_all` or `compare_forced`; plug-ins' scores among them."""
    return REST + len(registered.names()) + compared * len(COMPARED)


@dataclass(frozen=True, slots=True)
class Emitted:
    """The next tokens of some rows. tokens `[rows, k]`, taken `[rows, k]` bool, records `[rows, k, COLUMNS]` float32."""

    tokens: Tensor
    taken: Tensor
    records: Tensor


def emit(
    policy: Policy,
    sampling: Sampling,
    host: Tensor | None,
    donor: Tensor | None,
    block: Block,
    at: Tensor,
    *,
    drafted: Tensor | None = None,
    forced: Tensor | None = None,
    traced: bool = False,
) -> Emitted:
    """The tokens of positions `block.positions` `[rows, k]`, decided from left to right as if all before them stood.

    host and donor: raw logits `[rows, k, vocab]`, None where the policy has no such model. `block.scores` is not read. at: the
    words of the positions `[rows, k]`, int64 of the same bits. drafted `[rows, k]`: what the host drew there, where it is known.
    forced `[rows, k]`: what is emitted whatever is drawn; its log-probability under the model that writes is recorded then.
    """
    wanted = host is not None and (policy.needs_token or traced or host.device.type == "cpu")
    if wanted and host is not None and drafted is None and forced is None:
        drafted = draw_rows(host, at, sampling)
    hosted = drafted if forced is None else forced  # a text that stands is what the host draws
    scores = _by_pieces(policy.scores, host, donor, hosted if policy.needs_token else None)
    taken = policy.decide(replace(block, scores=scores, tokens=hosted))
    other = policy.mix(host, donor) if host is not None and donor is not None else donor
    records = torch.full((*scores.shape, COLUMNS), torch.nan, device=scores.device)
    if forced is not None:
        tokens = forced
        written = _choose(taken, host, other)
        records[..., REST] = log_probs(written).gather(-1, tokens[..., None])[..., 0]
        records[..., REST + 1] = written.argmax(-1) == tokens
    elif drafted is not None:
        tokens = _replace_taken(drafted, taken, other, at, sampling)
    else:
        tokens = draw_rows(_choose(taken, host, other), at, sampling)
    if policy.mixes and hosted is not None:
        taken = taken & (tokens != hosted)
    records[..., SCORE], records[..., TAKEN] = scores, taken
    if traced:
        base = host if policy.host == "base" else donor if policy.donor == "base" else None
        drawn = None if host is None else drafted
        records[..., REST : REST + len(OBSERVED)] = observe(tokens, host, donor, base_logits=base, host_tokens=drawn)
    return Emitted(tokens, taken, records)


def score_all(host: Tensor, donor: Tensor, tokens: Tensor) -> Tensor:
    """Every registered score, in the order of their names' registry: `[rows, k, scores]` of logits `[rows, k, vocab]`."""
    return torch.stack([score(host, donor, tokens) for score in registered], -1)


def compare_forced(base: Tensor, guide: Tensor, forced: Tensor) -> Emitted:
    """As `emit`, for tokens `[rows, k]` that stand already: every registered score with the base as host, then `COMPARED`."""
    taken = torch.zeros_like(forced, dtype=torch.bool)
    own = torch.full((*forced.shape, REST), torch.nan, device=forced.device)
    return Emitted(forced, taken, torch.cat([own, score_all(base, guide, forced), compare(forced, base, guide)], -1))


def draw_rows(logits: Tensor, at: Tensor, sampling: Sampling) -> Tensor:
    """The race: one token id per position, of logits `[..., vocab]` and words `[...]` as int64."""
    flat, words = logits.reshape(-1, logits.shape[-1]), at.reshape(-1)
    if logits.device.type == "cuda":
        return draw_each(flat, words, sampling)[0].view(at.shape)
    drawn = _by_pieces(lambda rows, own: draw(rows, own.numpy().view(np.uint64), sampling), flat, words)
    return drawn.view(at.shape)


def _by_pieces(compute: Callable[..., Tensor], *rows: Tensor | None) -> Tensor:
    """What a function of rows makes of these, on a CPU of so few at a time that all stays in its cache."""
    logits = next(one for one in rows if one is not None)
    step = max(1, _PIECE // max(1, logits[0].numel()))
    if logits.device.type != "cpu" or step >= len(logits):
        return compute(*rows)
    starts = range(0, len(logits), step)
    return torch.cat([compute(*(None if one is None else one[i : i + step] for one in rows)) for i in starts])


def _choose(taken: Tensor, host: Tensor | None, donor: Tensor | None) -> Tensor:
    """The logits `[rows, k, vocab]` of the model that writes each position."""
    if host is None or donor is None:
        found = donor if host is None else host
        assert found is not None
        return found
    return torch.where(taken[..., None], donor, host)


def _replace_taken(drafted: Tensor, taken: Tensor, donor: Tensor | None, at: Tensor, sampling: Sampling) -> Tensor:
    """The drafted tokens, and the donor's draws where it takes over."""
    if donor is None:
        return drafted
    if donor.device.type == "cuda":
        return torch.where(taken, draw_rows(donor, at, sampling), drafted)
    tokens = drafted.clone()  # on a CPU nothing waits, and a draw costs a pass over the vocabulary
    if bool(taken.any()):
        tokens[taken] = draw_rows(donor[taken], at[taken], sampling)
    return tokens
