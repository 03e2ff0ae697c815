"""Algorithm 1 as the loop that it is: both models read every token, one of them writes it.

This engine is the reference that every faster one is compared with, so it is kept short and plain.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lm_eval_takeover.decoding.rows import choose_device
from lm_eval_takeover.decoding.stop_strings import StopStrings
from lm_eval_takeover.forward.self_check import choose_reading
from lm_eval_takeover.forward.sequences import Sequences
from lm_eval_takeover.forward.transfers import HostCopy
from lm_eval_takeover.method.gate import push
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.observations import observe
from lm_eval_takeover.method.policy import Block, Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.method.sampling import chances, draw, request_digest, to_tensor, words
from lm_eval_takeover.pair.pair import Pair


@dataclass(slots=True)
class Row:
    """One sample while it is being written."""

    index: int
    request: Request
    generation: Generation

    @property
    def text(self) -> tuple[int, ...]:
        """Its prompt, and what an earlier attempt has written."""
        return (*self.request.prompt, *self.generation.tokens)


@torch.inference_mode()
def generate(
    pair: Pair,
    policy: Policy,
    requests: Sequence[Request],
    *,
    begun: Sequence[Generation] | None = None,
    seed: int = 0,
    batch_size: int = 1,
    traced: bool = False,
    count_tokens: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, Generation]]:
    """As `engine.generate`, which also knows `early` with a rate. `begun` are generations that go on, one for each request."""
    vocab, eos = pair.vocab_size, pair.eos_ids
    begun = begun or [Generation.begin(request, traced) for request in requests]
    waiting = [Row(i, request, generation) for i, (request, generation) in enumerate(zip(requests, begun, strict=True))]
    readings = {role: choose_reading(pair.member(role)) for role in policy.roles}
    padded = all(reading.padded for reading in readings.values())
    for group in _whole_prompts(waiting, batch_size, padded=padded):
        prompts = list(dict.fromkeys(row.text for row in group))
        read = {
            role: Sequences.prefill(pair.member(role), vocab, prompts, cached=reading.cached)
            for role, reading in readings.items()
        }
        for start in range(0, len(group), batch_size):
            rows = group[start : start + batch_size]
            places = [prompts.index(row.text) for row in rows]
            selected = {role: sequences.select(places) for role, sequences in read.items()}
            yield from _decode(pair, policy, rows, selected, eos, seed, count_tokens)


def _decode(
    pair: Pair,
    policy: Policy,
    rows: list[Row],
    read: dict[str, Sequences],
    eos: frozenset[int],
    seed: int,
    count_tokens: Callable[[int], None] | None,
) -> Iterator[tuple[int, Generation]]:
    """Algorithm 1, lines 5-14, on rows that share their sampling and `until`."""
    sampling = rows[0].request.sampling
    stop = StopStrings(pair.tokenizer, rows[0].request.until)
    device = choose_device(next(iter(read.values())).logits.device)
    at = to_tensor(_numbers(rows, words, seed), device)
    chance = torch.from_numpy(_numbers(rows, chances, seed)).to(device)
    donor_length = torch.tensor([row.request.donor_length for row in rows], device=device)
    position = len(rows[0].generation.tokens)
    window = torch.zeros(len(rows), policy.window, device=device)
    for place in range(max(0, position - policy.window), position):
        window = push(window, torch.tensor([row.generation.scores[place] for row in rows], device=device))
    while True:
        host = read[policy.host].logits.to(device) if policy.host else None
        donor = read[policy.donor].logits.to(device) if policy.donor else None
        drawn = draw(host, at[:, position], sampling) if host is not None and policy.needs_token else None
        score = policy.scores(host, donor, drawn)
        here = torch.full((len(rows), 1), position, device=device)
        block = Block(here, score[:, None], window, chance[:, position, None], donor_length)
        if drawn is not None:
            block = replace(block, tokens=drawn[:, None])
        if policy.reads_text:
            block = replace(block, written=[row.generation for row in rows], tokenizer=pair.tokenizer)
        fire = policy.decide(block)[:, 0]  # equation (5)
        if host is None or donor is None:
            logits = donor if host is None else host
        else:
            logits = torch.where(fire[:, None], policy.mix(host, donor), host)
        assert logits is not None
        tokens = draw(logits, at[:, position], sampling)  # equation (6)
        if policy.mixes and drawn is not None:
            fire = fire & (tokens != drawn)
        found = [tokens, fire, score]
        found += [sequences.logits.amax(-1).isfinite().to(device) for sequences in read.values()]
        if rows[0].generation.observed is not None:
            base = host if policy.host == "base" else donor if policy.donor == "base" else None
            if drawn is None and host is not None:  # what the host draws where the donor takes over
                asked = torch.where(fire, torch.arange(len(rows), device=device), -1)
                drawn = torch.where(fire, draw(host, at[:, position], sampling, asked), tokens)
            found.append(observe(tokens, host, donor, base_logits=base, host_tokens=drawn))
        written, fired, scores, *more = HostCopy(*found).fetch()  # the one time that a token waits for a device
        for sequences, sound in zip(
            read.values(), more, strict=False
        ):  # no token stands that was drawn from no distribution
            if not bool(sound.all()):
                name = rows[int(sound.byte().argmin())].request.label
                raise sequences.member.refuse_logits(f"token {position} of {name}")
        policy.refuse_nan(scores)
        window = push(window, score)
        position += 1
        if count_tokens is not None:
            count_tokens(len(rows))

        alive = []
        for place, (row, token, taken, value) in enumerate(
            zip(rows, written.tolist(), fired.tolist(), scores.tolist(), strict=True)
        ):
            generation = row.generation
            generation.tokens.append(token)
            generation.taken_over.append(taken)
            generation.scores.append(value)
            if generation.observed is not None:
                generation.observed.frombytes(more[-1][place].numpy().tobytes())
            full = len(generation.tokens) == row.request.max_new_tokens
            if full or token in eos or stop.found(generation.tokens):
                # The last token is read by nobody.
                passes = position - 1 - len(row.request.begun)
                generation.base_passes = passes * ("base" in policy.roles)
                generation.guide_passes = passes * ("guide" in policy.roles)
                yield row.index, generation
            else:
                alive.append(place)
        if not alive:
            return
        if len(alive) < len(rows):
            rows = [rows[place] for place in alive]
            read = {role: sequences.select(alive) for role, sequences in read.items()}
            keep = torch.tensor(alive, device=device)
            tokens, window, donor_length = tokens[keep], window[keep], donor_length[keep]
            at, chance = at[keep], chance[keep]
        for sequences in read.values():
            sequences.append(tokens)


def _numbers(rows: list[Row], stream: Callable[[int, bytes, int, int], NDArray[Any]], seed: int) -> NDArray[Any]:
    """The numbers of each row's positions: `[rows, longest max_new_tokens]`."""
    count = max(row.request.max_new_tokens for row in rows)
    return np.stack([stream(seed, request_digest(row.request.prompt), row.request.sample, count) for row in rows])


def _whole_prompts(waiting: Sequence[Row], batch_size: int, *, padded: bool) -> Iterator[list[Row]]:
    """Rows in groups that are prefilled together: samples of one prompt stay together, longest prompts first.

    A group fits into one batch, unless it is a single prompt with more samples than that. Its rows are at one position. Unless
    they may be `padded`, its prompts have one length.
    """

    def settings(row: Row) -> tuple[object, ...]:
        sampling = row.request.sampling
        held = (len(row.generation.tokens), row.request.until, sampling.temperature, sampling.top_p, sampling.top_k)
        return (-len(row.text), row.text, *held)

    def go_together(row: Row) -> tuple[object, ...]:
        return (0 if padded else len(row.text), *settings(row)[2:])

    by_prompt = [list(same) for _, same in groupby(sorted(waiting, key=settings), key=settings)]
    group: list[Row] = []
    for same in by_prompt:
        fits = len(group) + len(same) <= batch_size
        if group and not (fits and go_together(group[0]) == go_together(same[0])):
            yield group
            group = []
        group = group + same
    if group:
        yield group
