"""Whether a run is worse than its baseline: `regressed` or `pass` where an interval says so, else `inconclusive`.

A limit is compared with an interval over problems, never with a point: relative limits, too, since `new - (1 - r) old` is one
more mean over problems.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, nan

import numpy as np

from lm_eval_takeover.commands.regress.baseline import Measured, Side
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results.recovery import NOT_ABOVE, measure_ratio
from lm_eval_takeover.results.settings import list_differences
from lm_eval_takeover.results.statistics import Difference, Values, holm, paired_difference

RECOVERIES = {"recovery": "acc", "recovery_pass@8": "pass@8"}  # by the metric that they are of
DROPS = ("acc", "pass@8", "maj@8", *RECOVERIES)  # worse where lower
CHANGES = (
    "realized_rate", "truncated", "guide_passes_per_token", "no_answer", "unparsed", "timed_out", "unclosed_think",
)  # fmt: skip
_RATIOS = {"realized_rate": "takeovers", "guide_passes_per_token": "guide_passes"}  # over tokens
NEED_COSTS = (*_RATIOS, "truncated")
_SHOWN = 5  # problems that an error names


@dataclass(frozen=True)
class Limit:
    """How much less (of a drop), or how much less or more (of a change) is allowed; relative ones as a share of the baseline."""

    amount: float
    relative: bool = False

    def __str__(self) -> str:
        return f"{100 * self.amount:g}%" if self.relative else f"{self.amount:g}"

    def margins(self, new: Values, old: Values, *, both: bool) -> list[Values]:
        """By problem how far inside the limit it is, at the lower end and, where `both`, at the upper one."""
        allowed = self.amount * old if self.relative else np.full_like(old, self.amount)
        return [new - old + allowed, *([old - new + allowed] if both else [])]


@dataclass(frozen=True)
class TaskVerdict:
    """One task. `p_value` is one-sided: of a difference this bad if the true one were just at the limit."""

    metric: str
    baseline: float
    now: float
    difference: float
    low: float
    high: float
    p_value: float
    verdict: str
    note: str = ""
    p_holm: float = 1.0


def compare(old: Measured, new: Measured, metric: str, limit: Limit, confidence: float) -> dict[str, TaskVerdict]:
    """A verdict by task; several are corrected by Holm. Raises ResultsError where the two are not of the same problems."""
    found = {
        task: _compare_task(task, old.tasks[task], new.tasks[task], metric, limit, confidence) for task in old.tasks
    }
    adjusted = holm([verdict.p_value for verdict in found.values()])
    level = (1 - confidence) / 2
    for (task, verdict), p_holm in zip(list(found.items()), adjusted, strict=True):
        kept = verdict.verdict != "regressed" or p_holm <= level
        note = (
            verdict.note if kept else f"beyond the limit alone, but not among {len(found)} tasks (Holm: {p_holm:.3g})"
        )
        found[task] = TaskVerdict(
            **(vars(verdict) | {"verdict": verdict.verdict if kept else "inconclusive", "note": note, "p_holm": p_holm})
        )
    return found


def worst(verdicts: Sequence[TaskVerdict]) -> str:
    """The verdict of a run."""
    present = {verdict.verdict for verdict in verdicts}
    return next(name for name in ("regressed", "inconclusive", "pass") if name in present)


def check_settings(old: Measured, new: Measured, allowed: Sequence[str], where: str) -> list[str]:
    """The differences that are allowed, one line each. Raises ArgumentError that lists all others."""
    pairs = [("", old.settings, new.settings)]
    pairs += [(f"{task} ", old.tasks[task].settings, new.tasks[task].settings) for task in old.tasks]
    lines = list(dict.fromkeys(f"{name}{line}" for name, a, b in pairs for line in list_differences(a, b, allowed)))
    if lines:
        raise ArgumentError(
            f"settings differ from {where}: {'; '.join(lines)}; run with the baseline's settings, name those that may "
            "differ with --allow, or take this run as the new baseline with --update"
        )
    every = [line for _, a, b in pairs for line in list_differences(a, b)]
    return list(dict.fromkeys(every))


def check_tasks(old: Measured, new: Measured) -> None:
    """Raises ResultsError where a task, a problem or a sample is on one side only."""
    for here, there, side in ((old, new, "the run"), (new, old, "the baseline")):
        if missing := sorted(here.tasks.keys() - there.tasks.keys()):
            raise ResultsError(
                f"{', '.join(missing)}: missing in {side}; choose common tasks with --tasks, or --update"
            )
    for task in old.tasks:
        before, now = old.tasks[task].problems, new.tasks[task].problems
        for a, b, side in ((before, now, "the run"), (now, before, "the baseline")):
            missing_ids = [name for name in a.ids if name not in set(b.ids)]
            if missing_ids:
                shown = ", ".join(missing_ids[:_SHOWN]) + (", …" if len(missing_ids) > _SHOWN else "")
                raise ResultsError(
                    f"{task}: {len(missing_ids)} of {len(a)} problems are missing in {side} (doc_hash {shown})"
                )
        if before.samples != now.samples:
            raise ResultsError(f"{task}: {now.samples} samples a problem, the baseline has {before.samples}")


def _compare_task(task: str, old: Side, new: Side, metric: str, limit: Limit, confidence: float) -> TaskVerdict:
    if metric in RECOVERIES:
        return _compare_recovery(task, old, new, metric, limit, confidence)
    places = {name: place for place, name in enumerate(new.problems.ids)}
    order = [places[name] for name in old.problems.ids]
    before, now = _values(old, metric), _values(new, metric)
    if before is None or now is None:
        if metric in NEED_COSTS:
            raise ResultsError(
                f"{task}: {metric} by problem is in the run_dir alone, and one of the two runs had none or lost it"
            )
        raise ResultsError(f"{task}: one of the two runs is of a version of the task without '{metric}'")
    now = now[order]
    samples = inf if metric in _RATIOS else old.problems.samples
    means = float(before.mean()), float(now.mean())
    if old.problems.texts == new.problems.texts and np.array_equal(before, now):
        return TaskVerdict(metric, *means, 0.0, 0.0, 0.0, 1.0, "pass", "no sample differs")
    difference = paired_difference(now - before, samples)
    interval = difference.interval(confidence)
    margins = [paired_difference(values, samples) for values in limit.margins(now, before, both=metric in CHANGES)]
    spans = [margin.interval(confidence) for margin in margins]
    p_value = min(1.0, len(margins) * min(margin.p_below(0.0) for margin in margins))
    verdict = "regressed" if any(span.high < 0 for span in spans) else "inconclusive"
    verdict = "pass" if all(span.low >= 0 for span in spans) else verdict
    note = (
        ""
        if verdict != "inconclusive"
        else describe_need(min(margins, key=lambda m: m.value), before, now, samples, confidence)
    )
    return TaskVerdict(metric, *means, difference.value, interval.low, interval.high, p_value, verdict, note)


def _compare_recovery(task: str, old: Side, new: Side, metric: str, limit: Limit, confidence: float) -> TaskVerdict:
    """Recovery between the base and the reference of the baseline, both of which stay what they were.

    `R_new >= R_old - x` where `new - old + x (reference - base)` is at least 0 in the mean, and `R_new >= (1 - r) R_old` where
    `new - old + r (old - base)` is: means over problems again, whose intervals are compared with the limit.
    """
    if old.anchors is None:
        raise ResultsError(
            f"{task}: the baseline holds no base and reference, which Recovery is measured between; write it anew with "
            "--update --base RESULTS --reference RESULTS"
        )
    samples, of = old.problems.samples, RECOVERIES[metric]
    before, now = old.problems.values[of], new.problems.ordered_as(old.problems.ids).values[of]
    base, reference = old.anchors.values(of, samples)
    gap = float(reference.mean() - base.mean())
    spread = measure_ratio([np.stack([now - before, reference - base])], [samples], confidence)
    if spread is None:
        return TaskVerdict(metric, nan, nan, nan, nan, nan, 1.0, "inconclusive", NOT_ABOVE)
    means = [float(values.mean() - base.mean()) / gap for values in (before, now)]
    if old.problems.texts == new.problems.texts and np.array_equal(before, now):
        return TaskVerdict(metric, means[0], means[1], 0.0, 0.0, 0.0, 1.0, "pass", "no sample differs")
    room = before - base if limit.relative else reference - base
    margin = paired_difference(now - before + limit.amount * room, samples)
    span = margin.interval(confidence)
    verdict = "regressed" if span.high < 0 else "pass" if span.low >= 0 else "inconclusive"
    note = describe_need(margin, before, now, samples, confidence) if verdict == "inconclusive" else ""
    return TaskVerdict(
        metric, means[0], means[1], spread.value, spread.low, spread.high, margin.p_below(0.0), verdict, note
    )


def describe_need(margin: Difference, old: Values, new: Values, samples: float, confidence: float) -> str:
    """With how many problems, or samples of these, the interval would leave the limit if the difference stays as it is."""
    count = len(old)
    reach = margin.interval(confidence).high - margin.value
    if abs(margin.value) < reach / 100:
        return "the difference lies at the limit, where no number of problems tells"
    problems = ceil(count * (reach / margin.value) ** 2)
    text = f"about {problems} problems could tell"
    if np.isfinite(samples) and samples > 1:
        within = float((old * (1 - old) + new * (1 - new)).mean()) / (samples - 1)
        wanted = count * margin.error**2 * (margin.value / reach) ** 2
        between = max(count * margin.error**2 - within, 0.0)
        if wanted > between and within > 0:
            text += f", or about {ceil(within * samples / (wanted - between))} samples of each of these {count}"
    return text


def _values(side: Side, metric: str) -> Values | None:
    """A value per problem whose mean is the metric; of a ratio of sums its linearisation, `R + (t_i - R k_i) / mean(k)`."""
    if metric not in NEED_COSTS:
        return side.problems.values.get(metric)
    if side.costs is None:
        return None
    if metric == "truncated":
        return side.costs.truncated / side.problems.samples
    tokens, spent = side.costs.tokens, getattr(side.costs, _RATIOS[metric])
    ratio = spent.sum() / tokens.sum()
    return np.asarray(ratio + (spent - ratio * tokens) / tokens.mean())
