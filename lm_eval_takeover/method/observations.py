"""Numbers of each token in traces and scores files: entropies, log-probabilities, ranks and likeliest tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lm_eval_takeover.kernels.operations import ModelRead
from lm_eval_takeover.method.reading import Distribution, PairReading, gather
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.request import OBSERVED

SHARED = (5, 10)  # sizes of the sets of likeliest tokens whose overlap is counted
COMPARED = (
    *(f"{role}_{measure}" for measure in ("entropy", "logprob", "rank", "top") for role in ("base", "guide")),
    "guide_top_rank",
    *(f"shared_top{size}" for size in SHARED),
)  # of scores files
COUNTED = COMPARED[4:]  # of these the whole numbers


Asked = Tensor | None  # None where a model was not asked


def observe(
    tokens: Tensor, host_logits: Asked, donor_logits: Asked, *, base_logits: Asked = None, host_tokens: Asked = None
) -> Tensor:
    """Float32 `[..., 5]` of tokens `[...]`, in the order of `OBSERVED`; NaN where a model was not asked.

    Logits are `[..., vocab]`. Entropy and log-probabilities in nats; the rank, under the host, of the emitted token is 1 for
    its likeliest one. `host_tokens` `[...]` are what the host draws with the same numbers; ids below 2^24 are exact in float32.
    """
    observed = torch.full((*tokens.shape, len(OBSERVED)), torch.nan, device=tokens.device)
    if host_tokens is not None:
        observed[..., 4] = host_tokens
    first, second = (donor_logits, None) if host_logits is None else (host_logits, donor_logits)
    assert first is not None
    reading = PairReading(first, second, tokens)
    host = None if host_logits is None else reading.host
    donor = None if donor_logits is None else reading.host if host is None else reading.donor
    if base_logits is not None:
        base = host if base_logits is host_logits else donor
        assert base is not None
        observed[..., 0] = base.entropy
    for place, model in ((1, host), (2, donor)):
        if model is not None:
            observed[..., place] = _log_prob(model, tokens)
    if host is not None:
        observed[..., 3] = host.rank
    return observed


def _log_prob(model: Distribution | ModelRead, tokens: Tensor) -> Tensor:
    """Nats `[...]`. On a CPU without the sums that scores need, whose small values count."""
    return model.logprob if isinstance(model, ModelRead) else gather(model.log_probs, tokens)


def judge_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens `[...]` and whether they are the likeliest, as 0 or 1: float32 `[..., 2]`."""
    model = PairReading(logits, None, tokens).host
    return torch.stack([_log_prob(model, tokens), (model.top == tokens).float()], -1)


def compare(reading: PairReading) -> Tensor:
    """Float32 `[..., 11]` of a reading with the base as host and tokens `[...]`, in the order of `COMPARED`.

    Entropies and log-probabilities in nats; ranks are those of the token that stands there, 1 for the likeliest; tops are the
    likeliest tokens' ids. `guide_top_rank` is the rank under the base of the guide's likeliest token, `shared_top5` how many of
    the 5 likeliest tokens of both are the same. Whole numbers below 2^24 are exact in float32.
    """
    base, guide, of_guide = reading.host, reading.donor, reading.donor_logits
    assert reading.tokens is not None and of_guide is not None
    logits = (reading.host_logits, of_guide)
    first = gather(logits[0], guide.top.long())[..., None]
    columns = [
        *(base.entropy, guide.entropy, _log_prob(base, reading.tokens), _log_prob(guide, reading.tokens)),
        *(base.rank, guide.rank, base.top, guide.top, (logits[0] > first).sum(-1) + 1),
    ]
    tops = [one.topk(min(SHARED[-1], one.shape[-1]), dim=-1).indices for one in logits]
    for size in SHARED:
        ours, theirs = (top[..., :size] for top in tops)
        columns.append((ours[..., :, None] == theirs[..., None, :]).sum((-1, -2)))
    return torch.stack([column.float() for column in columns], -1)


def read_all(scores: Sequence[Score], base_logits: Tensor, guide_logits: Tensor, tokens: Tensor) -> Tensor:
    """These scores with the base as host, then `COMPARED`: float32 `[..., scores + 11]`."""
    reading = PairReading(base_logits, guide_logits, tokens)
    return torch.cat([torch.stack([score.of(reading) for score in scores], -1), compare(reading)], -1)
