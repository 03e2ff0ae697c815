"""How good: a row per task and run, with Recovery and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lm_eval_takeover.analysis.outcomes import K
from lm_eval_takeover.analysis.pooling import MEAN
from lm_eval_takeover.commands.report.inputs import Analysis
from lm_eval_takeover.results.recovery import Trio, measure_recovery
from lm_eval_takeover.results.statistics import Interval, Values, average_interval, count_observations, mean_interval
from lm_eval_takeover.results.summary import choose_averaged
from lm_eval_takeover.runs.run_reader import Answered, RunReader
from lm_eval_takeover.tasks.metrics import pass_at_k

MISSING = "–"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, as texts."""

    task: str
    run: str
    cells: list[str]


def find_k(analysis: Analysis) -> int:
    """Of Pass@k: 8, or as many samples as every problem has where those are fewer."""
    return min([K, *(len(found) for problems in analysis.samples.values() for found in problems.values())])


def list_columns(k: int) -> list[tuple[str, str]]:
    """Headings, and what they mean."""
    return [
        ("Acc", "mean over samples, with its 95 % interval over problems"),
        (f"Pass@{k}", f"problems that any of {k} samples solves, with its 95 % interval"),
        ("Recovery against the guide, Acc", "(run - base) / (guide - base), with Fieller's 95 % interval"),
        (f"Recovery against the guide, Pass@{k}", f"the same for Pass@{k}"),
        ("Realized rate", "share of tokens taken over"),
        ("Guide passes / token", "forward passes of one row, prefill apart"),
        ("Tokens / s", "of the whole run, all its tasks together"),
        ("Truncated", "share of the samples that the token limit cut off"),
    ]


def list_rows(analysis: Analysis) -> list[Row]:
    """By task, `mean` last, and run."""
    k = find_k(analysis)
    tasks = sorted({task for run in analysis.runs.values() for task in run.tasks})
    averaged = choose_averaged(tasks)
    rows = []
    for task in [*tasks, *([MEAN] if len(tasks) > 1 else [])]:
        inside = averaged if task == MEAN else [task]
        for name, run in analysis.runs.items():
            if any(one not in run.tasks for one in inside):
                continue
            accuracies = [_describe_mean(analysis, name, inside, of) for of in (None, k)]
            recoveries = [_describe_recovery(analysis, name, inside, of) for of in (None, k)]
            rows.append(Row(task, name, [*accuracies, *recoveries, *_describe_costs(run, inside)]))
    return rows


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1%}"


def _describe_mean(analysis: Analysis, name: str, tasks: Sequence[str], k: int | None) -> str:
    """Acc, or Pass@k, with its interval."""
    parts = []
    for task in tasks:
        values = list(_value_by_problem(analysis, name, task, k).values())
        known = np.array([value for value in values if value is not None], dtype=np.float64)
        if len(known) < len(values) or not values:
            return MISSING
        parts.append(mean_interval(known))
    found = average_interval(parts) if len(parts) > 1 else parts[0]
    return f"{percent(found.value)}\n[{found.low:.1%}, {found.high:.1%}]"


def _describe_recovery(analysis: Analysis, name: str, tasks: Sequence[str], k: int | None) -> str:
    found = None
    if analysis.runs[name].written_by is None and analysis.base and analysis.guide:
        found = _measure(analysis, (name, analysis.base, analysis.guide), tasks, k)
    return MISSING if found is None else f"{found.value:z.0%}\n[{found.low:z.0%}, {found.high:z.0%}]"


def _measure(analysis: Analysis, runs: tuple[str, str, str], tasks: Sequence[str], k: int | None) -> Interval | None:
    """Recovery over these tasks; None where the runs have other problems, or the guide is not above the base for sure."""
    trios = []
    for task in tasks:
        values = [_value_by_problem(analysis, run, task, k) for run in runs]
        if any(one.keys() != values[0].keys() or not one or None in one.values() for one in values):
            return None
        guided, base, guide = (np.array([one[doc] for doc in sorted(one)], dtype=np.float64) for one in values)
        samples = len(next(iter(found for key, found in analysis.samples[runs[0]].items() if key[0] == task)))
        trios.append(Trio(guided, base, guide, count_observations("acc" if k is None else f"pass@{k}", samples)))
    return measure_recovery(trios)


def _value_by_problem(analysis: Analysis, run: str, task: str, k: int | None) -> dict[int, float | None]:
    return {
        doc: _value_of_problem(samples, k) for (name, doc), samples in analysis.samples[run].items() if name == task
    }


def _value_of_problem(samples: Sequence[Answered], k: int | None) -> float | None:
    """The share of correct samples, or Pass@k; None where they were not verified."""
    if any(one.outcome is None for one in samples):
        return None
    right = sum(one.correct for one in samples)
    return right / len(samples) if k is None else float(pass_at_k(len(samples), right, k))


def _describe_costs(run: RunReader, tasks: Sequence[str]) -> list[str]:
    """Means over tasks of ratios of sums, as everywhere; tokens per second of the whole run."""
    names = ("tokens", "takeovers", "guide_passes", "truncated")
    counts: list[Values] = []
    for task in tasks:
        samples = [one.stored for one in run.answered if one.task == task]
        totals = [sum(getattr(stored, name) for stored in samples) for name in names]
        counts.append(np.array([*totals, len(samples)], dtype=np.float64))
    tokens, takeovers, passes, truncated, samples_each = np.stack(counts, axis=1)
    written = sum(one.stored.tokens for one in run.stored_samples())
    speed = f"{written / run.seconds:,.0f}" if run.seconds > 0 else MISSING
    each = np.maximum(tokens, 1)
    return [
        percent(float((takeovers / each).mean())),
        f"{float((passes / each).mean()):.2f}",
        speed,
        percent(float((truncated / samples_each).mean())),
    ]
