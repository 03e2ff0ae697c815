"""Why two engines wrote different texts: the margin at the first difference, beside the noise of the passes."""

import statistics

import numpy as np
import torch

from lm_eval_takeover.forward.caches import pad_left
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.forward.reader import take_reader
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Generation, Request, Sampling
from lm_eval_takeover.method.sampling import Words, request_digest, token_numbers, words
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair


@torch.inference_mode()
def first_difference(
    pair: Pair, policy: Policy, request: Request, ours: Generation, theirs: Generation, seed: int = 0
) -> tuple[str, bool]:
    """What separates two texts of one request at their first difference, and whether the noise of the pass explains it.

    Both models read the common text in ten shapes. Where the texts disagree about the takeover, the margin is the distance of
    the score to the threshold; else the lead of the drawn token in the race. The noise is how far the shapes spread.
    """
    assert policy.gate is not None
    steps = (
        list(zip(ours.tokens, ours.taken_over, strict=True)),
        list(zip(theirs.tokens, theirs.taken_over, strict=True)),
    )
    t = next((i for i, (a, b) in enumerate(zip(*steps, strict=False)) if a != b), min(map(len, steps)))
    text = [*request.prompt, *ours.tokens[:t]]
    vocab = pair.vocabulary.size
    seen = {m.role: shapes_of(m, text, vocab) for m in pair.members}
    scores = [float(policy.scores(a[None], b[None])[0]) for a, b in zip(seen["base"], seen["guide"], strict=True)]
    recent = ours.scores[max(0, t - policy.gate.window) : t]
    least = max(policy.gate.tau, policy.gate.kappa * (sum(recent) / len(recent)) if recent else 0.0)
    if t >= min(map(len, steps)) or ours.taken_over[t] != theirs.taken_over[t]:
        margin, noise = abs(statistics.median(scores) - least), max(scores) - min(scores)
        what = f"score {statistics.median(scores):.4f}, threshold {least:.4f} nats"
    else:
        at = words(seed, request_digest(request.prompt), request.sample, t + 1)[t:]
        drawn = seen[policy.writes(ours.taken_over[t])]
        leads = [lead(one, ours.tokens[t], theirs.tokens[t], at, request.sampling) for one in drawn]
        margin, noise = abs(statistics.median(leads)), max(leads) - min(leads)
        what = f"ln of the ratio of the two tokens' E/p {statistics.median(leads):.4f}"
    explained = margin <= 2 * noise
    return (
        f"token {t}: {what}; margin {margin:.2g}, noise {noise:.2g}{'' if explained else ', NOT EXPLAINED'}",
        explained,
    )


def shapes_of(member: Member, text: list[int], vocab: int) -> list[torch.Tensor]:
    """Next-token logits `[vocab]` after the text, by transformers' pass and by ours, in blocks and batches of several sizes."""
    ids = torch.tensor([text], device=member.device)
    found = [member.compute_logits(ids, torch.ones_like(ids))[0, -1, :vocab]]
    # As in lockstep: beside longer rows, padded on the left.
    for longer in (9, 40):
        padded, mask = pad_left([text, *[[*text, *text[:1] * longer]] * 3], member.device)
        found.append(member.compute_logits(padded, mask)[0, -1, :vocab])
    # In blocks, beside rows that have read `ahead` tokens more.
    for rows, block, ahead in ((1, len(text), 0), (1, 1, 0), (3, 5, 0), (8, 7, 0), (4, 1, 30), (7, 5, 60), (7, 1, 150)):
        reader = take_reader(prepare_pass(member), rows, vocab)
        if ahead:
            reader.read(range(1, rows), ids[:, :1].expand(rows - 1, ahead))
            reader.lengths[1:] = [ahead] * (rows - 1)
        for start in range(0, len(text), block):
            part = ids[:, start : start + block].expand(rows, -1)
            logits = reader.read(range(rows), part)
            reader.lengths = [length + part.shape[1] for length in reader.lengths]
        found.append(logits[0, -1])
    return found


def lead(logits: torch.Tensor, ours: int, theirs: int, at: Words, sampling: Sampling) -> float:
    """By how much, in `ln(E_v / p_v)`, one token wins over the other with this word; 0 is where the draw changes."""
    if sampling.temperature == 0:
        return float(logits[ours] - logits[theirs])
    both = np.array([ours, theirs])
    waits = -np.log((token_numbers(both, int(at[0])) + 0.5) * 2.0**-32)
    races = np.log(waits) - logits.double().cpu().numpy()[both] / sampling.temperature
    return float(races[1] - races[0])
