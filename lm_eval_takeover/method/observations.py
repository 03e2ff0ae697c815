"""Numbers of each token in traces and scores files: entropies, log-probabilities, ranks and likeliest tokens."""

import torch
from torch import Tensor

from lm_eval_takeover.kernels import operations as kernels
from lm_eval_takeover.method.generation import OBSERVED
from lm_eval_takeover.method.scores import entropy, log_probs

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
    if host_logits is not None and kernels.uses_kernels(host_logits):
        _, _, host, donor = kernels.read_pair(host_logits, donor_logits, tokens)
        observed[..., 1], observed[..., 2], observed[..., 3] = host.logprob, donor.logprob, host.rank
        if base_logits is not None:
            observed[..., 0] = host.entropy if base_logits is host_logits else donor.entropy
        return observed
    if base_logits is not None:
        observed[..., 0] = entropy(base_logits)
    for place, logits in ((1, host_logits), (2, donor_logits)):
        if logits is not None:
            chosen = logits.gather(-1, tokens[..., None])
            observed[..., place] = chosen[..., 0].float() - logits.float().logsumexp(-1)
            if place == 1:
                observed[..., 3] = (logits > chosen).sum(-1) + 1
    return observed


def judge_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities of tokens `[...]` and whether they are the likeliest, as 0 or 1: float32 `[..., 2]`."""
    if kernels.uses_kernels(logits):
        read = kernels.read_pair(logits, None, tokens).host
        return torch.stack([read.logprob, (read.top == tokens).float()], -1)
    chosen = log_probs(logits).gather(-1, tokens[..., None])[..., 0]
    return torch.stack([chosen, (logits.argmax(-1) == tokens).float()], -1)


def compare(tokens: Tensor, base_logits: Tensor, guide_logits: Tensor) -> Tensor:
    """Float32 `[..., 11]` of tokens `[...]`, in the order of `COMPARED`; logits are `[..., vocab]`.

    Entropies and log-probabilities in nats; ranks are those of the token that stands there, 1 for the likeliest; tops are the
    likeliest tokens' ids. `guide_top_rank` is the rank under the base of the guide's likeliest token, `shared_top5` how many of
    the 5 likeliest tokens of both are the same. Whole numbers below 2^24 are exact in float32.
    """
    both = []
    for logits in (base_logits, guide_logits):
        seen = dict(zip(OBSERVED, observe(tokens, logits, None, base_logits=logits).unbind(-1), strict=True))
        both.append([seen["base_entropy"], seen["host_logprob"], seen["donor_rank"], logits.argmax(-1).float()])
    first = base_logits.gather(-1, guide_logits.argmax(-1, keepdim=True))
    columns = [column for pair in zip(*both, strict=True) for column in pair] + [(base_logits > first).sum(-1) + 1.0]
    tops = [logits.topk(min(SHARED[-1], logits.shape[-1]), dim=-1).indices for logits in (base_logits, guide_logits)]
    for size in SHARED:
        base, guide = (top[..., :size] for top in tops)
        columns.append((base[..., :, None] == guide[..., None, :]).sum((-1, -2)).float())
    return torch.stack(columns, -1)
