"""What a result is: the figures of one task, and of the average over tasks, that all tables, files and pages show.

A new column is one field of `Rates` (or of `Counts`), and one heading where it is shown. Start reading at `Summary`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from lm_eval_takeover.results.files import MATHEMATICAL, Counts, Run, TaskResult
from lm_eval_takeover.results.problems import ACC, NO_PROBLEMS, Problems, align, list_scores
from lm_eval_takeover.results.statistics import NOT_ABOVE, Interval, Values, average_interval, mean_interval, measure_recovery

WIDE = 1.0  # from this width of its interval on, a Recovery is marked
TOO_WIDE = "the interval of Recovery is wider than 100 points, since these problems are few for such a gap"


@dataclass(frozen=True)
class Figure:
    """A figure with its 95 % interval over problems. `why` says what is missing: the figure, or only its interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    why: str | None = None

    @classmethod
    def of(cls, interval: Interval | None, why: str | None = None) -> Self:
        """The figure of an interval; an empty figure of None."""
        return cls(why=why) if interval is None else cls(interval.value, interval.low, interval.high)

    @property
    def interval(self) -> Interval | None:
        if self.value is None or self.low is None or self.high is None:
            return None
        return Interval(self.value, self.low, self.high)

    def describe(self, name: str) -> dict[str, Any]:
        """`NAME`, `NAME_low` and `NAME_high`, as files have them."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


@dataclass(frozen=True)
class Rates:
    """Ratios of sums over one task; in an average the mean over tasks. None where a task does not know it."""

    realized_rate: float | None = None  # tokens that the donor wrote, of all tokens
    changed_rate: float | None = None  # tokens that are not the host's draw, of all tokens
    asked_rate: float | None = None  # tokens at which the donor is asked, by its method's definition, of all tokens
    base_passes_per_token: float | None = None
    guide_passes_per_token: float | None = None
    donor_passes_per_token: float | None = None  # of the model that takes over
    weights_per_token: float | None = None  # parameters read, in all passes of both models
    seconds_per_problem: float | None = None
    truncated: float | None = None  # samples that their token limit ended, of all samples; those below, too
    acc_boxed: float | None = None  # correct in a box
    unboxed: float | None = None  # read without a box
    no_answer: float | None = None
    unparsed: float | None = None
    same_as_guide: float | None = None  # pairs of a sample and another one of the guide's that have one text

    @classmethod
    def of(cls, run: Run, counts: Counts, **others: float | None) -> Self:
        """The rates of a run from these counts, of one task or of all. Seconds are those of all its problems together."""
        problems = sum(result.count for result in run.tasks.values())
        others["seconds_per_problem"] = run.seconds / problems if problems and run.seconds is not None else None
        if not counts.tokens:  # a model that counts nothing writes a token in each pass
            return cls(realized_rate=counts.realized_rate, weights_per_token=run.parameters.get("model"), **others)
        passes = {"base": counts.base_passes or 0, "guide": counts.guide_passes or 0}
        weights = sum(passes[role] * count for role, count in run.parameters.items() if role in passes)
        passes["donor"] = passes["base" if run.takeover.get("direction") == "reverse" else "guide"]
        totals = {f"{role}_passes": count for role, count in passes.items()} | ({"weights": weights} if weights else {})
        known = {f"{name}_per_token": total / counts.tokens for name, total in totals.items()}
        shares = {"changed_rate": counts.changed, "asked_rate": counts.asked}
        known |= {name: count / counts.tokens for name, count in shares.items() if count is not None}
        return cls(realized_rate=counts.realized_rate, **known, **others)


@dataclass(frozen=True)
class Summary:
    """One task of a row, or the average over its tasks. `scores` have lm-eval's names: `acc`, `pass@8`, `maj@8`."""

    scores: Mapping[str, Figure]
    rates: Rates
    problems: int | None  # None where that is not known, as of a printed table
    samples: int | None  # of each problem; None where tasks differ
    k: int | None  # of the Pass@k that tables show; None where tasks differ, or there is none
    accuracy: str = ACC  # what the task itself calls `acc`

    def score(self, metric: str) -> Figure:
        """The figure of a metric; an empty one if there is none."""
        return self.scores.get(metric, Figure())

    @property
    def acc(self) -> Figure:
        return self.score(ACC)

    @property
    def passed(self) -> Figure:
        """The Pass@k that tables show."""
        return self.score(f"pass@{self.k}")


def summarize_tasks(run: Run, guide: Run | None = None) -> dict[str, Summary]:
    """Summarize the tasks of a run; `guide` is that of the guide alone, whose texts the run's are compared with, its own too."""
    return {task: _summarize_task(run, result, guide) for task, result in run.tasks.items()}


def _share_texts(row: Problems, guide: Problems) -> float | None:
    """How often a sample has the text of another sample of the guide, of the same problem and another place."""
    sides = align([row, guide])
    if sides is None or not all(side.sample_texts and side.samples > 1 for side in sides):
        return None
    own, its = (np.array(side.sample_texts) for side in sides)
    pairs = own[:, :, np.newaxis] == its[:, np.newaxis]
    return float(pairs[:, np.eye(*pairs.shape[1:]) == 0].mean())  # shared random numbers do not count


def _summarize_task(run: Run, result: TaskResult, guide: Run | None) -> Summary:
    scores = {}
    for metric in list_scores(result.means):
        scores[metric] = Figure(result.means[metric])
        if (values := result.problems.values.get(metric)) is not None:
            scores[metric] = Figure.of(mean_interval(values, clusters=result.problems.clusters))
    shares = {name: result.means.get(name) for name in ("acc_boxed", "unboxed", "no_answer", "unparsed")}
    shares["truncated"] = result.means.get("truncated", result.counts.truncated)
    own = guide.tasks[result.task].problems if guide and result.task in guide.tasks else NO_PROBLEMS
    # Where the guide itself never repeats a text, no row can tell.
    shares["same_as_guide"] = _share_texts(result.problems, own) if _share_texts(own, own) else None
    return Summary(scores, Rates.of(run, result.counts, **shares), result.count, result.samples, result.k, result.accuracy)


def average(parts: Sequence[Summary]) -> Summary:
    """Average over tasks, unweighted. A score or a rate that a task lacks is missing in it."""
    first, *others = parts
    metrics = [metric for metric in first.scores if all(metric in other.scores for other in others)]
    scores = {metric: _average_figures([part.score(metric) for part in parts]) for metric in metrics}
    rates = {field.name: mean_of([getattr(part.rates, field.name) for part in parts]) for field in fields(Rates)}
    counts = [part.problems for part in parts if part.problems is not None]
    problems = sum(counts) if len(counts) == len(parts) else None
    shared = _shared(part.samples for part in parts), _shared(part.k for part in parts)
    return Summary(scores, Rates(**rates), problems, *shared)


def _average_figures(figures: Sequence[Figure]) -> Figure:
    intervals = [each for figure in figures if (each := figure.interval) is not None]
    if len(intervals) == len(figures):
        return Figure.of(average_interval(intervals))
    return Figure(mean_of([figure.value for figure in figures]))


def name_passed(ks: Iterable[int | None]) -> str:
    """The name of the Pass@k of several rows: `Pass@8` where they have one k."""
    return f"Pass@{_shared(ks) or 'k'}"


def mean_of(values: Sequence[float | None]) -> float | None:
    """The unweighted mean; None where one is missing, or there is none."""
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers and len(numbers) == len(values) else None


def _shared(values: Iterable[int | None]) -> int | None:
    different = set(values)
    return different.pop() if len(different) == 1 else None


_SUBSET = re.compile(r"(?<=^takeover_)(.+)_\d+$")


def choose_averaged(tasks: Collection[str]) -> list[str]:
    """The tasks to average: the mathematical ones, else all. A subset (`takeover_gsm8k_100`) is left out beside the whole."""
    whole = [task for task in dict.fromkeys(tasks) if (full := _SUBSET.sub(r"\1", task)) == task or full not in tasks]
    return [task for task in MATHEMATICAL if task in whole] or whole


def find_nominal_rate(takeover: Mapping[str, Any]) -> float | None:
    """The rate, target rate or spike ratio that a run was given; None for a gate by hand. `takeover` is `config.takeover`."""
    rates = (takeover.get(name) for name in ("target_rate", "rate", "spike_ratio"))  # `rate` may be solved for the target
    return next((float(value) for value in rates if value is not None), None)


def recover(tasks: Sequence[Values]) -> Figure:
    """Recovery of the unweighted means over tasks; empty, with the reason, where the gap itself may be 0."""
    figure = Figure.of(measure_recovery(tasks), NOT_ABOVE)
    is_wide = figure.interval is not None and figure.interval.high - figure.interval.low > WIDE
    return replace(figure, why=TOO_WIDE) if is_wide else figure
