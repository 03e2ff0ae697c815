"""What a trace tells of an emitted token, beside its score: what the two models thought of it, and what stood in its place."""

import torch
from torch import Tensor

from lm_eval_takeover.method.scores import entropy

OBSERVED = ("base_entropy", "host_logprob", "donor_logprob", "donor_rank", "host_token")


def observe(
    tokens: Tensor,
    host_logits: Tensor | None,
    donor_logits: Tensor | None,
    *,
    base_logits: Tensor | None = None,
    host_tokens: Tensor | None = None,
) -> Tensor:
    """Float32 `[..., 5]` of tokens `[...]`, in the order of `OBSERVED`; NaN where a model was not asked.

    Logits are `[..., vocab]`. Entropy and log-probabilities in nats; the rank, under the host, of the emitted token is 1 for
    its likeliest one. `host_tokens` `[...]` are what the host draws with the same numbers; ids below 2^24 are exact in float32.
    """
    found = torch.full((*tokens.shape, len(OBSERVED)), torch.nan, device=tokens.device)
    if base_logits is not None:
        found[..., 0] = entropy(base_logits)
    for place, logits in ((1, host_logits), (2, donor_logits)):
        if logits is not None:
            chosen = logits.gather(-1, tokens[..., None])
            found[..., place] = chosen[..., 0] - logits.logsumexp(-1)
            if place == 1:
                found[..., 3] = (logits > chosen).sum(-1) + 1
    if host_tokens is not None:
        found[..., 4] = host_tokens
    return found
