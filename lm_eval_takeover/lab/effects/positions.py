"""Which positions are asked, and with which probability.

The population: positions of the run's texts where host and donor draw different tokens with the same numbers. A `takeover` has
the donor's token, a `control` the host's. Where a trace does not say what the other model draws, that model is asked: candidates
are drawn in proportion to the root of the chance that the models differ, so that none of those that do differ counts for many
others. Both choices are even over quarters of the score, and within them over places in the text.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.measures.effects import CONTROL, TAKEOVER
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, Request
from lm_eval_takeover.runs.run_reader import Answered, RunReader
from lm_eval_takeover.tasks.instances import read_generation_settings

_COLUMNS = ("chosen_from", "token_id", "host_token_id", "score", "host_logprob", "donor_logprob")
_QUARTERS = 4
_ASKED = 4  # candidates for each position that is wanted, where the other model must be asked
_FLOOR = 0.01  # beside the root of the chance that the other model draws another token: nothing is left out for certain
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a stored text, and the two tokens that host and donor draw there, UNKNOWN where one has not been asked."""

    kind: str
    sample: Answered
    prompt: tuple[int, ...]
    begun: tuple[int, ...]  # the tokens before it
    scores: tuple[float, ...]  # theirs and its own, in nats (NaN under a policy without a score)
    length: int  # of the text, in tokens
    host_token: int
    donor_token: int
    inclusion: float

    @property
    def place(self) -> int:
        return len(self.begun)

    @property
    def tokens(self) -> tuple[int, int]:
        return self.host_token, self.donor_token

    @property
    def label(self) -> str:
        return f"task {self.sample.task}, doc {self.sample.doc_id}, sample {self.sample.sample}, token {self.place}"


@dataclass(frozen=True)
class Candidates:
    """Tokens of one kind where host and donor may differ. `asked`: the trace does not say whether they do."""

    run: RunReader
    kind: str
    rows: NDArray[Any]
    asked: bool

    @property
    def expected(self) -> float:
        """At how many of them the models are to be expected to differ; NaN where the trace has no probabilities."""
        return float(self.rows["chance"].sum()) if self.asked else len(self.rows)

    def choose(self, count: int, seed: int, ask: Callable[[list[Position]], list[int]]) -> list[Position]:
        """At most `count` positions where the models differ; `ask` returns the tokens of the model that was not asked yet."""
        if not self.asked:
            chosen, inclusion = choose_evenly(self.rows, np.ones(len(self.rows)), count, seed)
            return self._read(chosen, inclusion)
        sizes = np.sqrt(np.nan_to_num(self.rows["chance"], nan=1)) + _FLOOR
        chosen, inclusion = choose_evenly(self.rows, sizes, _ASKED * count, seed)
        positions = self._read(chosen, inclusion)
        known = [
            replace(position, donor_token=token) if self.kind == CONTROL else replace(position, host_token=token)
            for position, token in zip(positions, ask(positions), strict=True)
        ]
        different = [place for place, position in enumerate(known) if position.host_token != position.donor_token]
        again, share = choose_evenly(self.rows[chosen[different]], np.ones(len(different)), count, seed + 1)
        kept = [known[different[place]] for place in again]
        return [replace(position, inclusion=position.inclusion * each) for position, each in zip(kept, share, strict=True)]

    def _read(self, chosen: NDArray[np.int64], inclusion: NDArray[np.float64]) -> list[Position]:
        """These candidates with the tokens before them, in the order of the texts."""
        rows, samples, positions = self.rows[chosen], self.run.stored_samples(), []
        texts = [samples[text] for text in np.unique(rows["text"])]
        read = {sample.stored.key: (sample, found) for sample, found in self.run.read_traces(_COLUMNS, texts)}
        for row, share in zip(rows, inclusion.tolist(), strict=True):
            sample, found = read[samples[row["text"]].stored.key]
            prompt, place = tuple(self.run.find_prompt(sample)["prompt_ids"]), int(row["token"])
            tokens, scores = found["token_id"].tolist(), tuple(found["score"][: place + 1].tolist())
            host, donor = (int(row["host"]), tokens[place]) if self.kind == TAKEOVER else (tokens[place], UNKNOWN)
            before = tuple(tokens[:place])
            positions.append(Position(self.kind, sample, prompt, before, scores, len(tokens), host, donor, share))
        return positions


_CANDIDATE = np.dtype(
    [*((name, "i4") for name in ("text", "token", "host", "left")), ("score", "f4"), ("place", "f4"), ("chance", "f8")]
)


def list_candidates(run: RunReader, limit: Callable[[Answered], int]) -> dict[str, Candidates]:
    """By kind, in the order of the texts. `limit` says how many tokens a text may have: another one must follow the position."""
    numbers = {sample.stored.key: number for number, sample in enumerate(run.stored_samples())}
    parts: dict[str, list[NDArray[Any]]] = {TAKEOVER: [], CONTROL: []}
    asked = {TAKEOVER: False, CONTROL: True}
    for sample, found in run.read_traces(_COLUMNS):
        chosen_from, token, host, score, host_p, donor_p = map(found.__getitem__, _COLUMNS)
        taken = chosen_from == run.donor
        rows = np.zeros(len(token), _CANDIDATE)
        rows["text"], rows["token"], rows["host"] = numbers[sample.stored.key], np.arange(len(token)), host
        rows["left"] = len(token) - 1 - rows["token"]
        rows["score"], rows["place"] = np.nan_to_num(score), rows["token"] / len(token)
        # With the same numbers the other model draws another token with about 1 - q / p, q its probability of the token here.
        other = np.where(taken, host_p - donor_p, donor_p - host_p)
        rows["chance"] = 1 - np.exp(np.minimum(other, 0))
        room = rows["token"] + 1 < limit(sample)
        asked[TAKEOVER] |= bool((taken & (host == UNKNOWN)).any())
        parts[TAKEOVER].append(rows[room & taken & (host != token)])
        parts[CONTROL].append(rows[room & ~taken])
    empty = np.zeros(0, _CANDIDATE)
    return {kind: Candidates(run, kind, np.concatenate([empty, *of]), asked[kind]) for kind, of in parts.items()}


def choose_evenly(
    rows: NDArray[Any], sizes: NDArray[np.float64], count: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """`(indices, probabilities)` of about `count` rows, each as probable as its size: a systematic sample from a random start."""
    if count >= len(rows):
        return np.arange(len(rows)), np.ones(len(rows))
    ranks = np.empty(len(rows))
    # By hundredths of a nat: the last bits of a score, which depend on the block lengths, choose no other positions.
    ranks[np.argsort(rows["score"].round(2), kind="stable")] = np.arange(len(rows))
    order = np.lexsort((rows["place"], ranks * _QUARTERS // len(rows)))  # in each quarter of the scores by place in the text
    sums = sizes[order].cumsum()
    step = sums[-1] / count
    points = (np.random.default_rng(seed).random() + np.arange(count)) * step
    chosen = np.unique(order[np.minimum(np.searchsorted(sums, points, "right"), len(rows) - 1)])
    return chosen, np.minimum(sizes[chosen] / step, 1.0)


@dataclass(frozen=True)
class Form:
    """How texts of a run are continued: the decoding of each task, and the context in tokens."""

    run: RunReader
    tasks: Mapping[str, Request]
    room: int = sys.maxsize

    @classmethod
    def of(cls, run: RunReader) -> Self:
        """Raises ArgumentError where the run does not say how a task's samples were drawn."""
        tasks, default = {}, int(run.arguments.get("max_gen_toks") or TASK_MAX_GEN_TOKS)
        for task in run.tasks:
            if (settings := run.decoding.get(task)) is None:
                raise ArgumentError(
                    f"run_dir='{run.folder}' does not say how task '{task}' was decoded, or says it in two ways"
                )
            sampling, until, most = read_generation_settings(settings, default)
            tasks[task] = Request((0,), 0, most, sampling, until, task)
        return cls(run, tasks)

    @property
    def is_greedy(self) -> bool:
        return all(request.sampling.temperature == 0 for request in self.tasks.values())

    def limit(self, sample: Answered) -> int:
        """Tokens of the whole text, at most."""
        prompt = len(self.run.find_prompt(sample)["prompt_ids"])
        return min(self.tasks[sample.task].max_new_tokens, self.room - prompt)

    def next_token(self, position: Position) -> Request:
        """The request that draws the position's token again, with the run's random numbers."""
        form = replace(self.tasks[position.sample.task], prompt=position.prompt, begun=position.begun, label=position.label)
        return replace(form, sample=position.sample.stored.sample, max_new_tokens=position.place + 1)

    def continue_both(self, position: Position, count: int) -> Iterator[Request]:
        """`count` continuations of the host's token, then of the donor's, with the same random numbers."""
        form = self.tasks[position.sample.task]
        form = replace(form, prompt=position.prompt, begun_scores=position.scores, label=position.label)
        for token in position.tokens:
            for number in range(count):
                # In the place of a sample's number: apart from those of samples and of other positions.
                sample = ((position.sample.sample + 1) << 40) | (position.place << 16) | number
                begun = (*position.begun, token)
                yield replace(form, begun=begun, sample=sample, max_new_tokens=self.limit(position.sample))


def describe_cost(
    run: RunReader, candidates: Mapping[str, Candidates], wanted: Mapping[str, int], options: argparse.Namespace
) -> str:
    """Texts, tokens, passes and hours, if texts stay as long as the run's and are written as fast."""
    count, stored = options.continuations, [answered.stored for answered in run.answered]
    numbers, words = {}, []
    for kind, most in wanted.items():
        rows, expected = candidates[kind].rows, candidates[kind].expected
        known, likely = not math.isnan(expected), np.nanmin([most, expected])
        numbers[kind] = round(likely) if likely >= 1 else 0
        few = "fewer than 0.1" if expected < 0.1 else f"about {expected:.1f}"
        differ = few if 0 < expected < 1 else f"{expected:,.0f}"
        among = differ if known else "an unknown number"
        chosen = (
            f"{'' if known else 'up to '}{numbers[kind]:,} of {among} {kind}s"
            if numbers[kind]
            else f"no {kind} ({differ} expected)"
        )
        words.append(f"{chosen} among {len(rows):,} tokens")
    left = {kind: float(of.rows["left"].mean()) if len(of.rows) else 0.0 for kind, of in candidates.items()}
    tokens = sum(2 * count * number * left[kind] for kind, number in numbers.items())
    written = sum(sample.tokens for sample in stored)
    passes = {"base": 0.0, "guide": 0.0} | {run.host: 1.0}
    if options.after == "gate":
        passes = {role: sum(getattr(sample, f"{role}_passes") for sample in stored) / written for role in passes}
    hours = f"{tokens * run.seconds / written / 3600:,.2f}" if run.seconds else "?"
    return (
        f"{' and '.join(words)}, {count} continuations behind each token: {2 * count * sum(numbers.values()):,} texts, about "
        f"{tokens:,.0f} tokens, {tokens * passes['base']:,.0f} passes of the base, {tokens * passes['guide']:,.0f} of the guide; "
        f"{hours} hours at the speed of the run"
    )
