"""Which loop writes the text: the blockwise one, or lockstep with `block_size=1`. They write the same."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lm_eval_takeover import blockwise, lockstep
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.generation import Generation, Request
from lm_eval_takeover.pair import Pair
from lm_eval_takeover.policy import Policy
from lm_eval_takeover.reader import forward_pass

logger = logging.getLogger(__name__)


def generate(
    pair: Pair,
    policy: Policy,
    requests: Sequence[Request],
    *,
    seed: int = 0,
    batch_size: int = 1,
    block_size: int | str = "auto",
    as_pair: bool = False,
) -> Iterator[tuple[int, Generation]]:
    """Yield `(index into requests, generation)` as samples finish. The order of work never changes a text.

    A prompt is prefilled once per model for all its samples. `batch_size` counts samples; `block_size` is the length of a draft
    in tokens, 1 the lockstep loop, which `auto` also takes for models that cannot be read in blocks. `as_pair` lets one model
    that writes alone keep to what the pair shares, its vocabulary and both sets of end tokens, as rollouts for calibration do.
    """

    if block_size == "auto":
        try:
            for role in policy.roles:
                forward_pass(pair.member(role))
        except ArgumentError as error:
            logger.warning("%s, as this run does", error)
            block_size = 1

    def written(by: Policy, asked: Sequence[Request]) -> Iterator[tuple[int, Generation]]:
        if block_size == 1:
            return lockstep.generate(pair, by, asked, seed=seed, batch_size=batch_size, as_pair=as_pair)
        fixed = None if isinstance(block_size, str) else block_size
        return blockwise.generate(pair, by, asked, seed=seed, batch_size=batch_size, block_size=fixed, as_pair=as_pair)

    if policy.name != "early" or policy.early_tokens is not None:
        yield from written(policy, requests)
        return
    # `round(rate * n)` early tokens for each request, `n` the length of the donor's own answer, which comes first.
    assert policy.rate is not None and policy.donor is not None
    alone = dict(written(Policy(policy.donor), requests))
    early = [replace(r, early_tokens=round(policy.rate * len(alone[i].tokens))) for i, r in enumerate(requests)]
    for i, generation in written(replace(policy, rate=None, early_tokens=0), early):
        generation.base_passes += alone[i].base_passes
        generation.guide_passes += alone[i].guide_passes
        yield i, generation
