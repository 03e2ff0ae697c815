"""Teacher forcing: scores, gate, log-probs and ranks of given texts, in one forward pass per model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import DynamicCache

from lm_eval_takeover.decoding.emission import by_positions, read_all
from lm_eval_takeover.forward.caches import pad_left
from lm_eval_takeover.forward.forward_pass import release_memory
from lm_eval_takeover.forward.self_check import choose_reading
from lm_eval_takeover.method.policy import Block, Policy
from lm_eval_takeover.method.reading import judge_tokens
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.request import COMPARED, COUNTED, Generation
from lm_eval_takeover.method.sampling import CHANCE, as_chances, request_digest, words
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

Texts = Sequence[Sequence[int]]  # ids, row by row
Labels = Sequence[str]
BLOCK = 2**26  # logits at a time and model: long texts over large vocabularies come in blocks of columns


@dataclass(frozen=True, slots=True)
class Forced:
    """One continuation under the policy. All tensors are `[tokens]`; scores and log-probs in nats."""

    scores: Tensor
    taken_over: Tensor
    log_probs: Tensor
    greedy: Tensor  # whether the model that writes a token finds it the likeliest


def _read_blocks(
    member: Member, vocab: int, prompts: Texts, continuations: Texts, labels: Labels, ends: Sequence[int]
) -> Iterator[Tensor]:
    """The logits that predict the continuations, as consecutive blocks `[rows, columns, vocab]` that end at these columns.

    Prompts and continuations are not empty. Rows are aligned at their ends: the last `len(continuation)` columns are a row's own.
    Raises ModelOutputError with the row's label if its logits are no distribution.
    """
    most = max(map(len, continuations))
    if not choose_reading(member).padded and len(prompts) > 1:  # each row in a pass of its own
        before = [most - len(text) for text in continuations]
        alone = [
            _read_blocks(member, vocab, [prompt], [text], [label], [end - skipped for end in ends if end > skipped])
            for prompt, text, label, skipped in zip(prompts, continuations, labels, before, strict=True)
        ]
        for start, end in pairwise([0, *ends]):
            begun = {place: next(row) for place, row in enumerate(alone) if end > before[place]}
            empty = next(iter(begun.values()))[:, :0]
            blocks = [begun.get(place, empty) for place in range(len(alone))]
            yield torch.cat([torch.nn.functional.pad(block, (0, 0, end - start - block.shape[1], 0)) for block in blocks])
        return
    rows = [[*prompt, *continuation][:-1] for prompt, continuation in zip(prompts, continuations, strict=True)]
    longest = max(map(len, rows))
    ids, mask = pad_left(rows, member.device)
    cache, read = None, 0
    for start, end in pairwise(longest - most + end for end in (0, *ends)):
        turn = min(max(member.rotation_length or end, start), end)  # from there on every token is rotated otherwise
        parts = []
        for begin, stop in pairwise(sorted({start, turn, end})):
            if cache is None or member.rotates_again(read, stop):
                cache, read = DynamicCache(config=member.model.config) if len(ends) > 1 else None, 0
            passed = member.compute_logits(ids[:, read:stop], mask[:, :stop], cache=cache, keep=stop - begin)
            parts.append(passed[..., :vocab])
            read = stop
        logits = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        member.check_logits(logits, labels.__getitem__, mask[:, start:end].bool())
        yield logits


def read_aligned(
    pair: Pair, roles: Sequence[str], prompts: Texts, continuations: Texts, labels: Labels, most: int = BLOCK
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """The tokens `[rows, columns]` of the continuations and each model's logits `[rows, columns, vocab]` for them.

    In consecutive blocks, all on one device, the rows aligned at their ends. Before its row's continuation a token is 0.
    """
    members = [pair.member(role) for role in roles]
    for member in pair.members:
        release_memory(member)
    length = max(map(len, continuations))
    tokens = torch.tensor([[0] * (length - len(c)) + list(c) for c in continuations])
    columns, column = max(1, most // (len(prompts) * pair.vocab_size)), 0
    for reading in map(choose_reading, members):
        if not (reading.cached and reading.chunked):
            columns = length  # at once
    texts = (pair.vocab_size, prompts, continuations, labels, [*range(columns, length, columns), length])
    for blocks in zip(*(_read_blocks(member, *texts) for member in members), strict=True):
        device = blocks[0].device
        chosen = tokens[:, column : column + blocks[0].shape[1]].to(device)
        column += blocks[0].shape[1]
        yield chosen, {role: block.to(device) for role, block in zip(roles, blocks, strict=True)}


@torch.inference_mode()
def force(
    pair: Pair, policy: Policy, prompts: Texts, continuations: Texts, seed: int = 0, labels: Labels = (), most: int = BLOCK
) -> list[Forced]:
    """Each continuation under the policy: at every position the gate sees the scores of the positions before it.

    Its tokens stand for the host's draws. `random` draws as sample 0 of the prompt. For `early`, its length is the donor's.
    """
    labels = labels or [f"row {i}" for i in range(len(prompts))]
    scores: list[Tensor] = []
    judged: dict[str, list[Tensor]] = {role: [] for role in policy.roles}
    for here, logits in read_aligned(pair, policy.roles, prompts, continuations, labels, most):
        by_host, by_donor = logits.get(policy.host or ""), logits.get(policy.donor or "")
        scores.append(by_positions(policy.scores, by_host, by_donor, here).cpu())
        if by_host is not None and by_donor is not None:
            logits = dict(zip(policy.roles, (by_host, policy.mix(by_host, by_donor)), strict=True))
        for role, block in logits.items():
            judged[role].append(by_positions(judge_tokens, block, here).cpu())
    whole = {role: torch.cat(parts, 1) for role, parts in judged.items()}
    all_scores = torch.cat(scores, 1)
    results = []
    for i, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        row = all_scores[i, -len(continuation) :]
        at = torch.from_numpy(words(seed, request_digest(prompt), 0, len(row), stream=CHANCE).view(np.int64))
        here, window, length = torch.arange(len(row)), torch.zeros(1, policy.window), torch.tensor([len(row)])
        tokens = torch.tensor([continuation])
        met = Block(here[None], row[None], window, as_chances(at)[None], length, tokens, [Generation()], pair.tokenizer)
        taken = policy.decide(met)[0]
        donor, host = (whole[policy.writes(taken_over)][i, -len(row) :] for taken_over in (True, False))
        log_p, greedy = torch.where(taken[:, None], donor, host).unbind(-1)
        # The continuation stands for the host's draws, and a mix that gives them is no takeover.
        results.append(Forced(row, taken & (not policy.mixes), log_p, greedy.bool()))
    return results


@torch.inference_mode()
def compare(
    pair: Pair, scores: Sequence[Score], prompts: Texts, continuations: Texts, labels: Labels, most: int = BLOCK
) -> list[dict[str, NDArray[Any]]]:
    """Scores and probabilities of each continuation's tokens under both models: arrays `[tokens]` by name, a dictionary per row.

    Scores by their names, with the base as host, in float32; then `COMPARED`, ranks and ids as int32.
    """
    parts = [
        by_positions(partial(read_all, scores), logits["base"], logits["guide"], tokens).cpu()
        for tokens, logits in read_aligned(pair, ("base", "guide"), prompts, continuations, labels, most)
    ]
    names = [*(score.name for score in scores), *COMPARED]
    columns = dict(zip(names, torch.cat(parts, 1).unbind(-1), strict=True))
    whole = {name: (values.int() if name in COUNTED else values).numpy() for name, values in columns.items()}
    return [
        {name: values[row, -len(continuation) :] for name, values in whole.items()}
        for row, continuation in enumerate(continuations)
    ]
