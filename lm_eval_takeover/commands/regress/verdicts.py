"""Judges a run: `regressed` or `pass` if an interval says so, else `inconclusive`. The average is judged as a task is.

`plan` simulates from a baseline how probable it is to notice a drop: it draws problems' chances given what the baseline scored,
runs a baseline and new runs with them, and judges these by the same intervals.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, nan

import numpy as np
from scipy.special import expit, logit, ndtri

from lm_eval_takeover.commands._output import show_p_value
from lm_eval_takeover.commands.regress.baseline import SeedRuns, TaskRuns, list_other_settings
from lm_eval_takeover.errors import ArgumentError, ResultsError, nearest
from lm_eval_takeover.results.files import common_ids
from lm_eval_takeover.results.problems import ACC, Problems, derive_pass_at_k
from lm_eval_takeover.results.settings import Settings, name_differences
from lm_eval_takeover.results.statistics import (
    NOT_ABOVE,
    Difference,
    Values,
    any_of_runs,
    as_values,
    average_differences,
    count_observations,
    fit_chances,
    holm,
    measure_ratio,
    within_shares,
)
from lm_eval_takeover.results.summary import choose_averaged
from lm_eval_takeover.tasks.metrics import pass_at_k

CHANGES = (
    "realized_rate", "guide_passes_per_token", "truncated", "no_answer", "restated", "unparsed", "timed_out", "unboxed",
    "unclosed_think",
)  # fmt: skip
_RATIOS = {"realized_rate": "takeovers", "guide_passes_per_token": "guide_passes"}  # over tokens
SAME = "no sample differs"
AVERAGE = "average"  # its name among the verdicts by task
POWER = 0.8  # at which a number of problems counts as enough


def is_drop(metric: str) -> bool:
    """Whether a metric is worse where it is lower."""
    return re.fullmatch(r"acc|recovery|(recovery_)?pass@[1-9]\d*|maj@[1-9]\d*", metric) is not None


def of_recovery(metric: str) -> str | None:
    """The metric that a Recovery is of; None for other metrics."""
    name, _, of = metric.partition("_")
    return (of or "acc") if name == "recovery" else None


@dataclass(frozen=True)
class TaskVerdict:
    """One task, or the average over tasks.

    `p_value` is of a difference this bad if the true one were just at the limit: one-sided for a drop, two-sided for a change.
    `p_holm` is corrected for all that is judged, and for the runs that one baseline is planned for.
    """

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


@dataclass(frozen=True)
class TaskPair:
    """One task in both runs, in one order of problems. `margins`: by problem how far inside the limit it is, at either end."""

    before: Values
    now: Values
    margins: Sequence[Values]
    observations: float
    same: bool  # the run's texts are those of a run of the baseline
    anchors: tuple[Values, Values] | None = None  # of a check of Recovery: base and reference


def compare(
    old: SeedRuns, new: SeedRuns, metric: str, limit: float, confidence: float, *, runs: int = 1, average_only: bool = False
) -> dict[str, TaskVerdict]:
    """Judge each task, and the average over several tasks. Raises ResultsError for other problems.

    Holm's correction is over tasks and average, which alone may use half of the error rate. `runs` are compared with this
    baseline in all.
    """
    parts = {task: _align(task, side, new.tasks[task], metric, limit) for task, side in old.tasks.items()}
    groups = {task: [part] for task, part in parts.items()}
    averaged = choose_averaged(old.tasks)
    if len(averaged) > 1:
        groups[AVERAGE] = [parts[task] for task in averaged]
    if average_only:
        groups = {AVERAGE: groups[AVERAGE]} if AVERAGE in groups else groups
    verdicts = {name: _judge(group, metric, confidence) for name, group in groups.items()}
    p_values = [any_of_runs(verdict.p_value, runs, old.seeds) for verdict in verdicts.values()]
    adjusted = holm(p_values, [float(max(1, len(verdicts) - 1)) if name == AVERAGE else 1.0 for name in verdicts])
    level = (1 - confidence) if metric in CHANGES else (1 - confidence) / 2
    for (name, verdict), p_holm in zip(list(verdicts.items()), adjusted, strict=True):
        verdicts[name] = replace(verdict, p_holm=p_holm)
        if verdict.verdict == "regressed" and p_holm > level:
            among = [f"{len(verdicts)} comparisons"] * (len(verdicts) > 1) + [f"{runs} runs"] * (runs > 1)
            note = f"beyond the limit alone, but not among {' and '.join(among)} (corrected p: {show_p_value(p_holm)})"
            verdicts[name] = replace(verdicts[name], verdict="inconclusive", note=note)
    return verdicts


def check_settings(old: SeedRuns, new: SeedRuns, allowed: Sequence[str], where: str) -> list[str]:
    """List the differences that are allowed. Raises ArgumentError that lists all others."""
    names = {"prompts", *(name for run in (old, new) for settings in _list_settings(run) for name in settings)}
    for name in allowed:
        if name not in names:
            raise ArgumentError(f"--allow '{name}' is not a setting of these runs; {nearest(name, names)}")
    if lines := list_other_settings(old, new, allowed):
        pairs = zip(_list_settings(old), _list_settings(new), strict=True)
        differing = {name for before, now in pairs for name in name_differences(before, now)} or {"prompts"}
        raise ArgumentError(
            f"settings differ from {where}: {'; '.join(lines)}; run with the baseline's settings, accept these with "
            f"`--allow {' '.join(sorted({*allowed, *differing}))}`, or take this run as the new baseline with --update"
        )
    return list_other_settings(old, new)


def _list_settings(measured: SeedRuns) -> list[Settings]:
    return [measured.settings, *(measured.tasks[task].settings for task in sorted(measured.tasks))]


def align(old: SeedRuns, new: SeedRuns, max_missing: float) -> tuple[SeedRuns, SeedRuns]:
    """Both runs, of the problems that both have. Raises ResultsError if one lacks a task, or too many problems."""
    for ours, theirs, where in ((old, new, "the run"), (new, old, "the baseline")):
        if missing := sorted(ours.tasks.keys() - theirs.tasks.keys()):
            raise ResultsError(f"{', '.join(missing)}: missing in {where}; choose common tasks with --tasks, or --update")
    kept_old, kept_new = {}, {}
    for task, side in old.tasks.items():
        before, now = side.problems, new.tasks[task].problems
        if (ids := common_ids([before, now], max_missing)) is None:
            lost = {"the run": {*before.ids} - {*now.ids}, "the baseline": {*now.ids} - {*before.ids}}
            where = max(lost, key=lambda name: len(lost[name]))
            raise ResultsError(
                f"{task}: the baseline has {len(before)} problems, the run {len(now)}; {len(lost[where])} are missing in "
                f"{where}, and at most a share of {max_missing:g} may be (--max_missing); use the same --limit, or write a new "
                "baseline with --update"
            )
        if before.samples != now.samples:
            raise ResultsError(f"{task}: {now.samples} samples a problem, the baseline has {before.samples}")
        kept_old[task], kept_new[task] = side.ordered_as(ids), new.tasks[task].ordered_as(ids)
    return replace(old, tasks=kept_old), replace(new, tasks=kept_new)


def _align(task: str, old: TaskRuns, new: TaskRuns, metric: str, limit: float) -> TaskPair:
    of = of_recovery(metric) or metric
    before, now = _values(old.problems, of), _values(new.problems, of)
    if before is None or now is None:
        if metric in (*_RATIOS, "truncated"):
            why = next(filter(None, (old.no_costs, new.no_costs)), "no tokens are counted")
            raise ResultsError(f"{task}: {metric} by problem is in the run_dir alone: {why}")
        metrics = ", ".join(name for name in old.problems.values if name in new.problems.values)
        raise ResultsError(f"{task} has no metric '{metric}' in both runs; it has {metrics}")
    observations = inf if metric in _RATIOS else count_observations(of, new.problems.samples)
    same = new.runs[0].texts in [run.texts for run in old.runs]
    if of == metric:
        margins = [now - before + limit, *([before - now + limit] if metric in CHANGES else [])]
        return TaskPair(before, now, margins, observations, same and (len(old.runs) > 1 or np.array_equal(before, now)))
    if old.anchors.keys() != {"base", "reference"}:
        raise ResultsError(
            f"{task}: Recovery needs base and reference, which the baseline does not hold; write it again with "
            "--update --base RESULTS --reference RESULTS"
        )
    k = int(of.removeprefix("pass@")) if of != ACC else 1
    base, reference = (
        derive_pass_at_k(old.anchors[role].values[ACC], old.problems.samples, k) for role in ("base", "reference")
    )
    # `R_new >= R_old - limit` where the mean of `new - old + limit (reference - base)` is at least 0.
    return TaskPair(before, now, [now - before + limit * (reference - base)], observations, same, (base, reference))


def _judge(parts: Sequence[TaskPair], metric: str, confidence: float) -> TaskVerdict:
    """Judge one task, or the unweighted average over several."""
    observations = [part.observations for part in parts]
    before, now = (
        float(np.mean([values.mean() for values in side]))
        for side in ([part.before for part in parts], [part.now for part in parts])
    )
    interval = within_shares(average_differences([part.now - part.before for part in parts], observations).interval(confidence))
    if of_recovery(metric):
        anchors = [part.anchors for part in parts if part.anchors]
        gaps = [reference - base for base, reference in anchors]
        pairs = [np.stack([part.now - part.before, gap]) for part, gap in zip(parts, gaps, strict=True)]
        spread = measure_ratio(pairs, observations, confidence)
        if spread is None:
            return TaskVerdict(metric, nan, nan, nan, nan, nan, 1.0, "inconclusive", NOT_ABOVE)
        base, whole = (float(np.mean([x.mean() for x in values])) for values in ([pair[0] for pair in anchors], gaps))
        before, now, interval = (before - base) / whole, (now - base) / whole, spread
    if all(part.same for part in parts):
        return TaskVerdict(metric, before, now, now - before, now - before, now - before, 1.0, "pass", SAME)
    ends = zip(*(part.margins for part in parts), strict=True)
    margins = [average_differences(values, observations) for values in ends]
    spans = [margin.interval(confidence) for margin in margins]
    p_value = min(1.0, len(margins) * min(margin.p_below() for margin in margins))
    verdict = "regressed" if any(span.high < 0 for span in spans) else "inconclusive"
    verdict = "pass" if all(span.low >= 0 for span in spans) else verdict
    count = sum(len(part.before) for part in parts)
    note = describe_need(min(margins, key=lambda m: m.value), count, confidence) if verdict == "inconclusive" else ""
    return TaskVerdict(metric, before, now, interval.value, interval.low, interval.high, p_value, verdict, note)


def describe_need(margin: Difference, count: int, confidence: float) -> str:
    """Say how many problems, instead of `count`, would show this difference in 80 % of runs."""
    reach = margin.reach(confidence) + margin.reach(2 * POWER - 1)
    if abs(margin.value) < reach / 100:
        return "the difference lies at the limit, where no number of problems tells"
    needed = ceil(count * (reach / margin.value) ** 2)
    return f"if this is the true difference, about {needed:,} problems could tell in {POWER:.0%} of runs"


def _values(problems: Problems, metric: str) -> Values | None:
    """A value per problem whose mean is the metric; of a ratio of sums its linearisation, `R + (t_i - R k_i) / mean(k)`."""
    values = problems.values
    if metric not in _RATIOS or not {"tokens", _RATIOS[metric]} <= values.keys():
        return values.get(metric)
    tokens, spent = values["tokens"], values[_RATIOS[metric]]
    ratio = spent.sum() / tokens.sum()
    return np.asarray(ratio + (spent - ratio * tokens) / tokens.mean())


# Plans.


# The expected metric of a problem whose samples are correct with probability p.
EXPECTED: dict[str, Callable[[Values], Values]] = {"acc": lambda p: p, "pass@8": lambda p: 1 - (1 - p) ** 8}
SIMULATIONS = 2000
MOST_PROBLEMS = 100_000  # a plan names no larger number
_HALVINGS = 26  # of 60 log-odds: to a millionth
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1


@dataclass(frozen=True)
class Design:
    """The rule of a simulation, the samples of each problem, and the runs of the baseline."""

    metric: str
    limit: float
    confidence: float
    samples: int
    seeds: int = 1

    @property
    def level(self) -> float:
        """The one-sided p-value from which a drop counts as one."""
        return (1 - self.confidence) / 2


@dataclass(frozen=True)
class Power:
    """The chance to find a drop. `problems_for_80` is None where it is too large."""

    task: str
    problems: int
    samples: int
    drop: float
    power: float
    problems_for_80: int | None


def plan(baseline: SeedRuns, metric: str, limit: float, confidence: float, drops: Sequence[float], samples: int) -> list[Power]:
    """Plan by task and drop, and for the average over tasks. Raises ArgumentError."""
    if metric not in EXPECTED:
        raise ArgumentError(f"--plan supports drops of {' and '.join(EXPECTED)}, not of '{metric}'")
    if metric == "pass@8" and samples < 8:
        raise ArgumentError(f"--samples {samples}: pass@8 needs at least 8 samples a problem")
    design = Design(metric, limit, confidence, samples, baseline.seeds)
    groups = {task: [side] for task, side in baseline.tasks.items()}
    if len(averaged := choose_averaged(baseline.tasks)) > 1:
        groups[AVERAGE] = [baseline.tasks[task] for task in averaged]
    return [_plan_drop(name, sides, design, drop) for name, sides in groups.items() for drop in drops]


def _plan_drop(name: str, sides: Sequence[TaskRuns], design: Design, drop: float) -> Power:
    generator = np.random.default_rng(0)
    chances = []
    for side in sides:
        scored = side.problems.values["acc"], side.problems.samples * len(side.runs)
        before = draw_difficulties(generator, *scored)
        chances.append((before, lower(before, drop, EXPECTED[design.metric])))
    parts = []
    for side, (before, after) in zip(sides, chances, strict=True):
        ours = max(design.samples, side.problems.samples)  # of the baseline, which is made anew with more
        old = draw_scores(generator, before, ours, design.metric, design.seeds)
        new = draw_scores(generator, after, design.samples, design.metric)
        parts.append(new - old + design.limit)
    observations = [float(count_observations(design.metric, design.samples))] * len(sides)
    margins = [average_differences(values, observations) for values in zip(*parts, strict=True)]
    power = float(np.mean([margin.p_below() <= design.level for margin in margins]))
    count = sum(len(side.problems) for side in sides)
    return Power(name, count, design.samples, drop, round(power, 4), _count_needed(margins, design, count))


def _count_needed(margins: Sequence[Difference], design: Design, count: int) -> int | None:
    beyond = -float(np.mean([margin.value for margin in margins]))
    if beyond <= 0:
        return None
    reach = float(np.sqrt(np.mean([margin.error**2 for margin in margins]))) * (ndtri(POWER) - ndtri(design.level))
    needed = count * (reach / beyond) ** 2
    return ceil(needed) if needed <= MOST_PROBLEMS else None


def draw_difficulties(generator: np.random.Generator, shares: Values, samples: int) -> Values:
    """Draw probabilities `[SIMULATIONS, problems]` that agree with what each problem scored (`fit_chances`)."""
    return np.clip(generator.beta(*fit_chances(shares, samples), (SIMULATIONS, len(shares))), _EDGE, 1 - _EDGE)


def lower(probabilities: Values, drop: float, expected: Callable[[Values], Values]) -> Values:
    """Shift all log-odds of a row by the one amount that lowers its expected metric by `drop`."""
    odds = logit(probabilities)
    target = expected(probabilities).mean(axis=1) - drop
    low, high = np.full(len(odds), -60.0), np.zeros(len(odds))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = expected(expit(odds + middle[:, np.newaxis])).mean(axis=1) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(expit(odds + low[:, np.newaxis]))


def draw_scores(generator: np.random.Generator, chances: Values, samples: int, metric: str, seeds: int = 1) -> Values:
    """Draw the metric by problem of runs with these chances, as the mean over `seeds` runs."""
    counts = range(samples + 1)
    scores = as_values([count / samples if metric == "acc" else pass_at_k(samples, count, 8) for count in counts])
    return as_values(sum(scores[generator.binomial(samples, chances)] for _ in range(seeds))) / seeds
