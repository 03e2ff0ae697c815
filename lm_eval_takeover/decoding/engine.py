"""Which loop writes the text: the blockwise one, or lockstep with `block_size=1`. They write the same."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.failures import Failures
from lm_eval_takeover.errors import ArgumentError, PluginError
from lm_eval_takeover.forward.forward_pass import prepare_pass
from lm_eval_takeover.method.generation import Generation
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.pair import Pair

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
    traced: bool = False,
) -> Iterator[tuple[int, Generation]]:
    """Yield `(index into requests, generation)` as samples finish. The order of work never changes a text.

    A prompt is prefilled once per model for all its samples. `batch_size` counts samples; `block_size` is the length of a draft
    in tokens, 1 the lockstep loop, which `auto` also takes for models that cannot be read in blocks. `as_pair` lets one model
    that writes alone keep to what the pair shares, its vocabulary and both sets of end tokens, as rollouts for calibration do.
    `traced` fills `Generation.observed`.

    A request that a model cannot answer (NaN, or any exception) does not hold up the others: it is raised, named, at the end.
    """
    failures = Failures(len(requests))
    if block_size == "auto":
        try:
            for role in policy.roles:
                prepare_pass(pair.member(role))
        except ArgumentError as error:
            logger.warning("%s, as this run does", error)
            block_size = 1

    def written(by: Policy, asked: Sequence[Request], traced: bool) -> Iterator[tuple[int, Generation]]:
        if block_size == 1:
            lockstepped = partial(
                lockstep.generate, pair, by, seed=seed, batch_size=batch_size, as_pair=as_pair, traced=traced
            )
            return _isolated(lockstepped, asked, failures)
        return blockwise.generate(
            pair,
            by,
            asked,
            seed=seed,
            batch_size=batch_size,
            block_size=None if isinstance(block_size, str) else block_size,
            as_pair=as_pair,
            traced=traced,
            failures=failures,
        )

    if not policy.needs_donor_length:
        yield from written(policy, requests, traced)
    else:
        # The donor's own answers come first; some requests at a time, so that the first samples are finished soon.
        assert policy.donor is not None
        some = 4 * batch_size
        for start in range(0, len(requests), some):
            asked = requests[start : start + some]
            own = {
                place: (len(g.tokens), g.base_passes, g.guide_passes)
                for place, g in written(ALONE[policy.donor](), asked, False)
            }
            answered = sorted(own)
            measured = [replace(asked[place], donor_length=own[place][0]) for place in answered]
            for number, generation in written(policy, measured, traced):
                place = answered[number]
                generation.base_passes += own[place][1]
                generation.guide_passes += own[place][2]
                yield start + place, generation
    failures.check()


def _isolated(
    write: Callable[[Sequence[Request]], Iterator[tuple[int, Generation]]],
    requests: Sequence[Request],
    failures: Failures,
) -> Iterator[tuple[int, Generation]]:
    """What `write` yields; after it failed, halves of what is left, until the request that fails is alone."""
    left = set(range(len(requests)))
    try:
        for i, generation in write(requests):
            left.remove(i)
            failures.succeeded()
            yield i, generation
        return
    except PluginError:
        raise
    except Exception as error:
        if len(left) <= 1:
            if not left:
                raise
            failures.add(requests[left.pop()], error)
            return
    remaining = sorted(left)
    middle = len(remaining) // 2
    for half in (remaining[:middle], remaining[middle:]):
        for place, generation in _isolated(write, [requests[i] for i in half], failures):
            yield half[place], generation
