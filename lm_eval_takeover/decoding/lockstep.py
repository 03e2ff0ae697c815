"""Algorithm 1 as a plain loop: both models read every token, one of them writes it. Faster engines are compared with it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple
from itertools import compress, groupby

import torch
from torch import Tensor

from lm_eval_takeover.decoding.rows import Row, blame, build_block, list_rows, stack_windows, take_next
from lm_eval_takeover.forward.caches import HostCopy, Sequences, choose_device, upload
from lm_eval_takeover.forward.self_check import choose_reading
from lm_eval_takeover.method.gate import push
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import CountTokens, Generation, Request
from lm_eval_takeover.method.sampling import draw
from lm_eval_takeover.pair.pair import Pair


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
    count_tokens: CountTokens | None = None,
) -> Iterator[tuple[int, Generation]]:
    """As `engine.generate`, but without `early` with a rate. begun: generations to continue, one for each request."""
    readings = {role: choose_reading(pair.member(role)) for role in policy.roles}
    padded = all(reading.padded for reading in readings.values())
    for rows in _list_batches(list_rows(pair, policy, requests, begun, traced), batch_size, padded=padded):
        try:
            texts = list(dict.fromkeys(row.text for row in rows))
            places = [texts.index(row.text) for row in rows]
            read = {
                role: Sequences.prefill(pair.member(role), pair.vocab_size, texts, cached=reading.cached).select(places)
                for role, reading in readings.items()
            }
            for row in rows:
                row.begin(policy, seed, _device_of(read))
            yield from _decode(policy, rows, read, pair.eos_ids, count_tokens)
        except Exception as error:
            blame(error, (row.index for row in rows))
            raise


def _decode(
    policy: Policy,
    rows: list[Row],
    read: dict[str, Sequences],
    ends: Collection[int],
    count_tokens: CountTokens | None,
) -> Iterator[tuple[int, Generation]]:
    """Algorithm 1, lines 5-14, on rows that share their sampling. read: each model's cache of all texts."""
    while True:
        tokens, ended = _write_tokens(policy, rows, read, ends)
        if count_tokens is not None:
            count_tokens(len(rows), sum(row.generation.taken_over[-1] for row in rows))
        for row in compress(rows, ended):
            passes = row.position - 1 - len(row.request.begun)  # each model has read all its tokens but the last
            row.generation.base_passes = passes * ("base" in policy.roles)
            row.generation.guide_passes = passes * ("guide" in policy.roles)
            yield row.index, row.generation
        alive = [place for place, end in enumerate(ended) if not end]
        if not alive:
            return
        if len(alive) < len(rows):
            rows = [rows[place] for place in alive]
            read = {role: sequences.select(alive) for role, sequences in read.items()}
            tokens = tokens[torch.tensor(alive, device=tokens.device)]
        for sequences in read.values():
            sequences.append(tokens)


def _write_tokens(
    policy: Policy, rows: list[Row], read: dict[str, Sequences], ends: Collection[int]
) -> tuple[Tensor, list[bool]]:
    """Append the next token of each row: the tokens `[rows]`, which stay on the device, and whether they end the texts."""
    device, sampling = _device_of(read), rows[0].request.sampling
    traced = rows[0].generation.observed is not None
    host, donor = (read[role].logits.to(device) if role else None for role in (policy.host, policy.donor))
    words, window = upload(take_next(rows, 1, "words"), device)[:, 0], stack_windows(rows)
    drawn = draw(host, words, sampling) if host is not None and (policy.needs_token or traced) else None

    score = policy.scores(host, donor, drawn)  # equation (2)
    proposed = None if drawn is None else drawn[:, None]
    fire = policy.decide(build_block(policy, rows, score[:, None], proposed, window))[:, 0]  # equation (5)
    chosen = donor if host is None else host if donor is None else policy.mix(host, donor).where(fire[:, None], host)
    assert chosen is not None
    tokens = draw(chosen, policy.choose_words(words, fire), sampling)  # equation (6)
    if policy.mixes and drawn is not None:
        fire = fire & (tokens != drawn)
    window = push(window, score)

    sound = [sequences.logits.amax(-1).isfinite().to(device) for sequences in read.values()]
    observed = [policy.observe(tokens, host, donor, drawn)] if traced else []
    # The only wait for the device.
    written, fired, scores, *rest = HostCopy(tokens, fire, score, *sound, *observed).fetch()
    for sequences, is_sound in zip(read.values(), rest, strict=False):
        if not bool(is_sound.all()):
            broken = rows[int(is_sound.byte().argmin())]
            raise blame(sequences.member.refuse_logits(broken.name), [broken.index])
    policy.refuse_nan(scores)
    ended, columns = [], (written.tolist(), fired.tolist(), scores.tolist())
    for place, (row, token, taken, value) in enumerate(zip(rows, *columns, strict=True)):
        row.window = window[place]
        seen = rest[-1][place : place + 1].numpy() if traced else None
        ended.append(row.emit([token], [taken], [value], seen, ends)[1])
        if row.thinking is not None:  # whose end may be forced
            tokens[place] = row.last
    return tokens, ended


def _device_of(read: dict[str, Sequences]) -> torch.device:
    """The device on which the logits of both models are used."""
    return choose_device(next(iter(read.values())).logits.device)


def _list_batches(waiting: Sequence[Row], batch_size: int, *, padded: bool) -> Iterator[list[Row]]:
    """Rows of one position, sampling and stop strings, and unless `padded` of one length. Samples of one prompt stay together."""

    def alike(row: Row) -> tuple[object, ...]:
        return (0 if padded else len(row.text), row.position, row.request.until, *astuple(row.request.sampling))

    ordered = sorted(waiting, key=lambda row: (*alike(row), -len(row.text), row.text))  # the longest first
    for _, group in groupby(ordered, key=alike):
        rows = list(group)
        yield from (rows[start : start + batch_size] for start in range(0, len(rows), batch_size))
