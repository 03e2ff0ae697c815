"""Chooses the engine: `lockstep` for `block_size=1` and for models that cannot be read in blocks, else `blockwise`.

`blockwise` drafts if the donor's distribution decides, else it goes `stepwise`. All write the same texts.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.failures import Failures, isolate
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.forward.self_check import check_member, verify_pass
from lm_eval_takeover.method.generation import CountTokens, Generation
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)

# `(policy, requests, traced)` to `(index into requests, generation)` as samples finish.
Write = Callable[[Policy, Sequence[Request], bool], Iterator[tuple[int, Generation]]]


def generate(
    pair: Pair,
    policy: Policy,
    requests: Sequence[Request],
    *,
    seed: int = 0,
    batch_size: int = 1,
    block_size: int | str = "auto",
    traced: bool = False,
    count_tokens: CountTokens | None = None,
) -> Iterator[tuple[int, Generation]]:
    """Yield `(index into requests, generation)` as samples finish. The order of work never changes a text.

    A prompt is prefilled once per model for all its samples. batch_size: in samples. block_size: the length of a draft in tokens;
    1 is the lockstep loop, which `auto` also uses for models that cannot be read in blocks. Every policy writes the shared
    vocabulary and ends at the end tokens of both models. traced: fills `Generation.observed`. A request that a model cannot
    answer does not stop the others; its error is raised at the end.
    """
    for role in policy.roles:
        check_member(pair.member(role))  # a model that cannot be served fails before any request
    failures = Failures(len(requests))
    in_blocks = block_size != 1 and _reads_blocks(pair, policy, block_size, batch_size)

    def write(by: Policy, asked: Sequence[Request], traced: bool) -> Iterator[tuple[int, Generation]]:
        count = count_tokens
        if count_tokens is not None and policy.needs_donor_length:  # the donor's own answers are no takeovers
            count = partial(_count_only, count_tokens)
        options: dict[str, Any] = {"seed": seed, "count_tokens": count, "traced": traced}
        if in_blocks:
            options["block_size"] = None if block_size == "auto" else block_size
        run = partial((blockwise if in_blocks else lockstep).generate, pair, by, **options)
        return isolate(run, asked, [Generation.begin(request, traced) for request in asked], failures, batch_size)

    if policy.needs_donor_length:
        yield from write_after_donor(write, policy, requests, traced, at_once=4 * batch_size)
    else:
        yield from write(policy, requests, traced)
    failures.check()


def _count_only(count_tokens: CountTokens, count: int, taken: int | None) -> None:
    count_tokens(count, None)


def _reads_blocks(pair: Pair, policy: Policy, block_size: int | str, batch_size: int) -> bool:
    """Whether the models can be read in blocks. If not, `auto` logs the reason and a number raises it."""
    try:
        for role in policy.roles:
            verify_pass(pair.member(role), batch_size)
    except ArgumentError as error:
        if block_size != "auto":
            raise
        logger.warning("%s, as this run does", error)
        return False
    return True


def write_after_donor(
    write: Write, policy: Policy, requests: Sequence[Request], traced: bool, *, at_once: int
) -> Iterator[tuple[int, Generation]]:
    """Generate by a policy that needs the length of the donor's own answers. They are written first; their passes count, too.

    at_once: requests at a time, so that the first samples finish soon.
    """
    assert policy.donor is not None
    for start in range(0, len(requests), at_once):
        batch = requests[start : start + at_once]
        own = dict(write(ALONE[policy.donor](), batch, False))
        answered = sorted(own)
        measured = [replace(batch[place], donor_length=len(own[place].tokens)) for place in answered]
        for number, generation in write(policy, measured, traced):
            place = answered[number]
            generation.base_passes += own[place].base_passes
            generation.guide_passes += own[place].guide_passes
            generation.donor_answer = len(own[place].tokens)
            yield start + place, generation
