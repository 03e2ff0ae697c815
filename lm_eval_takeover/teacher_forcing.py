"""Teacher forcing: the scores, the gate and the log-probs along a given text, two forward passes and no loop."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_eval_takeover.errors import ModelOutputError
from lm_eval_takeover.pair import Member, Pair
from lm_eval_takeover.policy import Policy
from lm_eval_takeover.sampling import request_digest, uniforms
from lm_eval_takeover.scores import log_probs


@dataclass(frozen=True, slots=True)
class Forced:
    """One continuation as the policy would have met it. All tensors are `[tokens]`; scores and log-probs in nats.

    `greedy` says whether each token is the most likely one of the model that writes there.
    """

    scores: Tensor
    taken_over: Tensor
    log_probs: Tensor
    greedy: Tensor


@torch.inference_mode()
def continuation_logits(
    member: Member, vocab: int, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
) -> list[Tensor]:
    """One forward pass over all rows: for each, the logits `[len(continuation), vocab]` that predict its tokens."""
    rows = [[*prompt, *continuation][:-1] for prompt, continuation in zip(prompts, continuations, strict=True)]
    longest, kept = max(map(len, rows)), max(map(len, continuations))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=member.device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=member.device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    output = member.model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=kept
    )
    logits = output.logits[..., :vocab].float()
    return [row[logits.shape[1] - len(continuation) :] for row, continuation in zip(logits, continuations, strict=True)]


def force(
    pair: Pair,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    labels: Sequence[str] = (),
) -> list[Forced]:
    """Each continuation under the policy: at every position the gate sees the scores of the positions before it.

    `random` draws as sample 0 of the prompt does; `early` with a rate takes the continuation's length for the donor's.
    """
    vocab = pair.vocab_size(policy.roles)
    read = {role: continuation_logits(pair.member(role), vocab, prompts, continuations) for role in policy.roles}
    results = []
    for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        for role in policy.roles:
            if not read[role][i].amax(-1).isfinite().all():
                raise ModelOutputError(
                    f"{role} '{pair.member(role).id.id}' returned logits that are no distribution (NaN or infinite) "
                    f"for {labels[i] if labels else 'a request'}; try dtype=float32"
                )
        host = read[policy.host][i] if policy.host else None
        donor = read[policy.donor][i] if policy.donor else None
        if host is not None and donor is not None:
            donor = donor.to(host.device)
        scores = policy.scores(host, donor)
        chances = torch.from_numpy(uniforms(seed, request_digest(prompt), 0, len(continuation), stream="takeover")).to(
            scores.device
        )
        early = (
            policy.early_tokens if policy.early_tokens is not None else round((policy.rate or 0) * len(continuation))
        )
        taken = policy.takes_over_along(scores, chances, early)
        logits = donor if host is None else host if donor is None else torch.where(taken[:, None], donor, host)
        assert logits is not None
        tokens = torch.tensor(continuation, device=logits.device)
        chosen = log_probs(logits).gather(-1, tokens[:, None])[:, 0]
        results.append(Forced(scores, taken, chosen, logits.argmax(-1) == tokens))
    return results
