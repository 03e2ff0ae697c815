"""The transformers engines as a backend: loads and checks the weights, chooses batches that fit into memory, and the engine.

That is `lockstep` for `block_size=1` and for models that cannot be read in blocks, else `blockwise`, which drafts if the donor's
distribution decides and goes `stepwise` if not. All write the same texts.
"""

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import torch
from numpy.typing import NDArray

from lm_eval_takeover.arguments import ModelArguments
from lm_eval_takeover.decoding import blockwise, lockstep
from lm_eval_takeover.decoding.costs import count_column_bytes
from lm_eval_takeover.decoding.rows import find_tags
from lm_eval_takeover.decoding.teacher_forcing import Forced, Texts, compare, force
from lm_eval_takeover.errors import ArgumentError, ModelOutputError, PluginError, TakeoverError, is_out_of_memory
from lm_eval_takeover.forward.caches import LONGEST, round_up_columns
from lm_eval_takeover.forward.forward_pass import release_memory
from lm_eval_takeover.forward.self_check import check_member, verify_pass
from lm_eval_takeover.method.policies import ALONE
from lm_eval_takeover.method.policy import Policy
from lm_eval_takeover.method.registry import Score
from lm_eval_takeover.method.request import CountTokens, Generation, Request
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair

logger = logging.getLogger(__name__)


class Failures:
    """Counts failures. `add` raises after `GIVE_UP` failed prompts in a row."""

    GIVE_UP = 32  # prompts

    def __init__(self, total: int) -> None:
        self.total = total
        self._errors: list[TakeoverError] = []
        self._in_a_row: set[tuple[int, ...]] = set()

    def add(self, request: Request, error: Exception) -> None:
        if is_out_of_memory(error):
            advice = "not enough memory for one sample; give a shorter max_length=… or a smaller dtype=…"
            error = ArgumentError(f"{request.label}: {advice}")
        if not isinstance(error, TakeoverError):
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
            logger.error("%s failed:\n%s", request.label, "".join(traceback.format_exception(error)).rstrip())
            error = ModelOutputError(f"{request.label}: {type(error).__name__}: {reason}")
        else:
            logger.error("%s", error)
        self._errors.append(error.with_traceback(None))  # its frames hold the caches of both models
        self._in_a_row.add(request.prompt)
        if len(self._in_a_row) == self.GIVE_UP:
            self.check(f"; gave up after {self.GIVE_UP} prompts in a row")

    def succeeded(self) -> None:
        self._in_a_row.clear()

    def check(self, rest: str = "; all others are finished") -> None:
        if not self._errors:
            return
        first, count = self._errors[0], len(self._errors)
        if self.total == 1:
            raise first
        more = "" if count == 1 else f" (and {count - 1} more, logged above)"
        raise type(first)(f"{first}{more}; {count} of {self.total} requests failed{rest}")


def isolate(
    write: Callable[..., Iterator[tuple[int, Generation]]],
    requests: Sequence[Request],
    begun: Sequence[Generation],
    failures: Failures,
    batch_size: int,
) -> Iterator[tuple[int, Generation]]:
    """The samples of `write(requests, begun=…, batch_size=…)`. After a failure, unfinished rows go on from their last token.

    The rows that were in the failed pass go on first, the others with the batch size as before. If memory ran out, they have half
    the batch size. After another failure they are halved until the failing request is alone.
    """
    parts = [(list(range(len(requests))), batch_size)]  # unfinished requests and their batch size, the next part last
    at_once = batch_size
    while parts:
        part, size = parts.pop()
        if size > at_once:
            logger.info("trying batch size %d again", size)
        at_once, left = size, dict.fromkeys(part)
        try:
            batch, texts = [requests[i] for i in part], [begun[i] for i in part]
            for place, generation in write(batch, begun=texts, batch_size=size):
                del left[part[place]]
                failures.succeeded()
                yield part[place], generation
        except PluginError:
            raise
        except Exception as error:
            if not left:
                raise
            places = vars(error).pop("places", None) or range(len(part))
            failed = [i for place in places if (i := part[place]) in left]  # none if all of them have ended in that step
            half = min(size, len(failed)) // 2
            if others := [i for i in left if i not in failed]:
                parts.append((others, size))
            if is_out_of_memory(error) and half:
                logger.warning("out of memory; continuing with batch size %d", half)
                parts.append((failed, half))
            elif len(failed) > 1:
                middle = (len(failed) + 1) // 2
                parts += [(failed[middle:], size), (failed[:middle], size)]
            elif failed:
                failures.add(requests[failed[0]], error)


_USED = 0.8  # of the free memory, for `batch_size=auto`
_LOGITS = 8  # float32 copies of one token's logits that exist at a time, drafts included
# `(policy, requests, traced)` to `(index into requests, generation)` as samples finish.
Write = Callable[[Policy, Sequence[Request], bool], Iterator[tuple[int, Generation]]]


class TransformersBackend:
    """Both models of a pair, loaded, and a policy."""

    def __init__(self, arguments: ModelArguments, pair: Pair, policy: Policy) -> None:
        self.arguments, self.pair, self.policy = arguments, pair, policy
        find_tags(pair, policy)
        for role in policy.roles:
            check_member(pair.member(role))  # a missing or broken checkpoint is an error now, not hours later

    def fit_rows(self, tokens: int) -> int:
        """The number of samples of this length at a time: `batch_size`, or for `auto` as many as fit into memory (logged)."""
        if self.arguments.batch_size != "auto":
            return self.arguments.rows
        members = [self.pair.member(role) for role in self.policy.roles]
        rows = rows_that_fit(members, tokens, self.pair.vocab_size, self.arguments.rows)
        logger.info("batch_size=auto: %d samples of up to %d tokens at a time", rows, tokens)
        return rows

    def generate(
        self, requests: Sequence[Request], *, rows: int, policy: Policy | None = None, **options: Any
    ) -> Iterator[tuple[int, Generation]]:
        """As `generate` below, by another policy if one is given. rows: samples at a time. options: `seed` and others."""
        block_size = self.arguments.block_size
        return generate(self.pair, policy or self.policy, requests, batch_size=rows, block_size=block_size, **options)

    def force(self, prompts: Texts, continuations: Texts, *, seed: int, labels: Sequence[str]) -> list[Forced]:
        """Each continuation as the policy would have met it; see `teacher_forcing.force`."""
        return force(self.pair, self.policy, prompts, continuations, seed=seed, labels=labels)

    def compare(
        self, scores: Sequence[Score], prompts: Texts, continuations: Texts, labels: Sequence[str]
    ) -> list[dict[str, NDArray[Any]]]:
        """Scores and probabilities of each continuation under base and guide; see `teacher_forcing.compare`."""
        return compare(self.pair, scores, prompts, continuations, labels)

    def close(self) -> None:
        """Do nothing: no other process has memory."""


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

    Samples of one prompt in a batch share its prefill. batch_size: in samples. block_size: the length of a draft in tokens;
    1 is the lockstep loop, which `auto` also uses for models that cannot be read in blocks. Every policy writes the shared
    vocabulary and ends at the end tokens of both models. traced: fills `Generation.observed`. A request that a model cannot
    answer does not stop the others; its error is raised at the end.
    """
    for role in policy.roles:
        check_member(pair.member(role))  # a model that cannot be served fails before any request
    failures = Failures(len(requests))
    in_blocks = block_size != 1 and _reads_blocks(pair, policy, block_size, batch_size)

    def write(by: Policy, asked: Sequence[Request], traced: bool) -> Iterator[tuple[int, Generation]]:
        count = partial(_count_only, count_tokens) if count_tokens and policy.needs_donor_length else count_tokens
        options: dict[str, Any] = {"seed": seed, "count_tokens": count, "traced": traced}
        if in_blocks:
            options["block_size"] = None if block_size == "auto" else block_size
        run = partial((blockwise if in_blocks else lockstep).generate, pair, by, **options)
        return isolate(run, asked, [Generation.begin(request, traced) for request in asked], failures, batch_size)

    yield from write_by(policy, write, requests, traced, at_once=4 * batch_size)
    failures.check()


def _count_only(count_tokens: CountTokens, count: int, _: int | None) -> None:
    """The donor's own answers are no takeovers."""
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


def write_by(
    policy: Policy, write: Write, requests: Sequence[Request], traced: bool, *, at_once: int
) -> Iterator[tuple[int, Generation]]:
    """Generate by a policy. If it needs the length of the donor's own answers, they come first; their passes count, too."""
    if not policy.needs_donor_length:
        yield from write(policy, requests, traced)
        return
    assert policy.donor is not None
    for start in range(0, len(requests), at_once):  # so that the first samples finish soon
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


def cache_bytes(member: Member) -> int | None:
    """Bytes of keys and values for one token of one sample. None if rows share one length."""
    try:
        verify_pass(member, rows=2)
    except ArgumentError:
        return None
    return count_column_bytes(member.model.config, member.model.dtype.itemsize)


def free_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on this device; on a CPU those of the machine, whatever a container's limit is."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused)
    return int(psutil.virtual_memory().available)


def rows_that_fit(members: Sequence[Member], tokens: int, vocab: int, most: int) -> int:
    """The number of rows of `tokens` tokens that fit into memory, 1 to `most`. Loads the models."""
    for member in members:
        release_memory(member)
    sizes = [cache_bytes(member) for member in members]
    columns = round_up_columns(tokens + LONGEST)
    needed: dict[torch.device, float] = {}
    for member, size in zip(members, sizes, strict=True):
        if size is None:  # it runs in lockstep
            return most
        row = columns * size + _LOGITS * vocab * 4
        device = torch.empty(0, device=member.device).device  # with its number
        needed[device] = needed.get(device, 0.0) + row
    fits = min(_USED * free_bytes(device) / row for device, row in needed.items())
    return max(1, min(most, int(fits)))
