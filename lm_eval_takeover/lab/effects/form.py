"""How texts of a run are continued, and what that costs. No torch, so that a dry run ends at once."""

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.lab.effects.positions import Candidates, Position
from lm_eval_takeover.method.request import TASK_MAX_GEN_TOKS, Request
from lm_eval_takeover.runs.run_reader import Answered, RunReader
from lm_eval_takeover.tasks.instances import read_generation_settings


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
        words.append(f"{'' if known else 'up to '}{numbers[kind]:,} of {among} {kind}s among {len(rows):,} tokens")
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
