"""Judges a run: `regressed` or `pass` if an interval says so, else `inconclusive`. The average is judged as a task is.

Where both runs draw with the same random numbers, `find_changed` counts the answers that changed their verdict, and tests them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np
from scipy.special import bdtrc, betaincinv

from lm_eval_takeover.commands._output import show_p
from lm_eval_takeover.errors import ArgumentError, ResultsError
from lm_eval_takeover.results import statistics
from lm_eval_takeover.results.documents import Settings
from lm_eval_takeover.results.files import Run, TaskResult
from lm_eval_takeover.results.problems import ACC, Problems
from lm_eval_takeover.results.statistics import Difference, Interval, Values
from lm_eval_takeover.results.summary import choose_averaged

CHANGES = (
    "realized_rate", "guide_passes_per_token", "truncated", "no_answer", "restated", "unparsed", "timed_out", "unboxed",
    "unclosed_think",
)  # fmt: skip
_RATIOS = {"realized_rate": "takeovers", "guide_passes_per_token": "guide_passes"}  # over tokens
SAME = "no sample differs"
CHANGED = "changed answers"  # the name of this check among metrics
AVERAGE = "average"  # its name among the verdicts by task
POWER = 0.8  # at which a number of problems counts as enough


def find_metric(settings: Settings, name: str) -> str:
    """The metric that a task calls so: `acc` has its own name there, alone or with its filter (`exact_match,strict-match`)."""
    own = settings.get("metric")
    return ACC if name in (own, f"{own},{settings.get('filter')}") else name


@dataclass(frozen=True)
class TaskVerdict:
    """One task, or the average over tasks. `p_holm` is corrected for all that is judged."""

    metric: str
    baseline: float
    now: float
    difference: float
    low: float
    high: float
    p_value: float  # of a difference this bad if the true one is at the limit: one-sided for a drop, two-sided for a change
    verdict: str
    note: str = ""
    p_holm: float = 1.0
    changed: "Changed | None" = None


@dataclass(frozen=True)
class TaskPair:
    """One task in both runs, by cluster of problems. `margins`: how far inside the limit each is, at either end."""

    before: Values
    now: Values
    margins: Sequence[Values]
    same: bool  # the run's texts are those of the baseline
    problems: int
    tokens: Sequence[Values] = ()  # of each side, where the metric is a ratio over them

    def measure(self, differences: Values) -> Difference:
        """Of a ratio of sums as many problems count as hold its tokens: of the two runs the lesser number."""
        found = statistics.paired_difference(differences, shares=not self.tokens)
        return max((found.of_sizes(each) for each in self.tokens), key=lambda one: one.reach(), default=found)


def compare(old: Run, new: Run, metric: str, limit: float, confidence: float) -> dict[str, TaskVerdict]:
    """Judge each task, and the average over several, corrected by `weigh`. Raises ResultsError for other problems."""
    parts = {task: _align(task, side, new.tasks[task], metric, limit) for task, side in old.tasks.items()}
    groups = {task: [part] for task, part in parts.items()}
    averaged = choose_averaged(old.tasks)
    if len(averaged) > 1:
        groups[AVERAGE] = [parts[task] for task in averaged]
    verdicts = {name: _judge(group, metric, confidence) for name, group in groups.items()}
    return correct(verdicts, (1 - confidence) if metric in CHANGES else (1 - confidence) / 2)


def correct(verdicts: dict[str, TaskVerdict], level: float) -> dict[str, TaskVerdict]:
    """The verdicts with p-values by Holm; what has regressed alone, but not among all of them at this level, is inconclusive."""
    adjusted = statistics.holm([verdict.p_value for verdict in verdicts.values()], weigh(verdicts))
    for (name, verdict), p_holm in zip(list(verdicts.items()), adjusted, strict=True):
        verdicts[name] = replace(verdict, p_holm=p_holm)
        if verdict.verdict == "regressed" and p_holm > level:
            note = f"beyond the limit alone, but not among {len(verdicts)} comparisons (corrected p: {show_p(p_holm)})"
            verdicts[name] = replace(verdicts[name], verdict="inconclusive", note=note)
    return verdicts


def weigh(names: Collection[str]) -> list[float]:
    """The weights of Holm's correction: the average has as much as all tasks together, half of the error rate."""
    return [float(max(1, len(names) - 1)) if name == AVERAGE else 1.0 for name in names]


@dataclass(frozen=True)
class Changed:
    """How many answers changed their verdict; of a problem with several samples it is how many are correct."""

    worse: int
    better: int
    answers: int

    @property
    def p_value(self) -> float:
        """Of the exact sign test: how probable it is that so many of those changed, or more, are worse by chance."""
        return float(bdtrc(self.worse - 1, self.worse + self.better, 0.5)) if self.worse else 1.0

    def describe(self) -> str:
        count = self.worse + self.better
        share = {self.worse: "all got worse", self.better: "all got better"}.get(count, f"{self.worse} got worse")
        shown = show_p(self.p_value) if self.p_value < 1e-4 else f"= {show_p(self.p_value)}"
        test = f", {share} (exact sign test: p {shown})" if count else ""
        return f"{count} of {self.answers:,} problems changed their verdict{test}"


def find_changed(old: Run, new: Run, task: str) -> Changed | None:
    """The answers that differ from the baseline's; None where it drew with other random numbers."""
    before, now = (run.tasks[task].problems for run in (old, new))
    if not (is_greedy(new.tasks[task].settings) or old.seed == new.seed is not None):
        return None
    differences = statistics.sum_clusters(now.values[ACC] - before.values[ACC], now.clusters)
    return Changed(int((differences < -1e-9).sum()), int((differences > 1e-9).sum()), len(differences))


def is_greedy(settings: Settings) -> bool:
    """Whether a task draws no random number, as `tasks.instances.is_greedy` says, which loads lm-eval."""
    temperature, sampled = settings.get("temperature"), settings.get("do_sample")
    return not (sampled or (sampled is None and temperature)) or (temperature is not None and float(temperature) == 0)


def judge_changed(old: Run, new: Run, most: float, confidence: float) -> dict[str, TaskVerdict]:
    """Judge by task the answers that changed their verdict: `pass` where they are at most so many, or such a share of all.

    Else the exact sign test judges, one-sided at `1 - confidence`: it looks for answers that got worse alone. Raises
    ArgumentError where the runs have other random numbers.
    """
    verdicts = {}
    for task in old.tasks:
        changed = find_changed(old, new, task)
        if changed is None:
            raise ArgumentError(
                f"--max_changed: {task} is sampled, and the baseline has another seed; compare greedy runs, or "
                "guided-takeover's of one seed"
            )
        count, answers = changed.worse + changed.better, changed.answers
        # Of those that changed, at least this share got worse: Clopper and Pearson's bound, one-sided as the test is.
        least = float(betaincinv(changed.worse, changed.better + 1, 1 - confidence)) if changed.worse else 0.0
        verdict = "regressed" if changed.p_value <= 1 - confidence else "inconclusive"
        verdict = "pass" if count <= (most if most >= 1 else most * answers) else verdict
        difference = (changed.better - changed.worse) / answers
        figures = count / answers, difference, 0.0 - count / answers, (1 - 2 * least) * count / answers, changed.p_value
        verdicts[task] = TaskVerdict(CHANGED, 0.0, *figures, verdict, changed.describe(), changed=changed)
    return correct(verdicts, 1 - confidence)


def judge_fixed(
    name: str, by_problem: Values, value: float, limit: float, confidence: float, clusters: Sequence[int]
) -> TaskVerdict:
    """Judge one task by a value that is known without its problems: the interval is that of the run alone."""
    values = statistics.by_cluster(by_problem, clusters)
    found, count = statistics.mean_interval(by_problem, confidence, clusters), len(values)
    within = Interval(found.value - value, found.low - value, found.high - value)
    # The test whose interval is Wilson's: the error is that of a true mean at the limit.
    edge = min(max(value - limit, 1e-9), 1 - 1e-9)
    spread = values.var() / max(found.value * (1 - found.value), 1e-9) if 0 < found.value < 1 else 1.0
    margin = Difference(found.value - edge, sqrt(edge * (1 - edge) * spread / count), max(count - 1, 1))
    verdict = "regressed" if within.high < -limit else "pass" if within.low >= -limit else "inconclusive"
    note = describe_need(margin, len(by_problem), confidence) if verdict == "inconclusive" else ""
    figures = value, found.value, within.value, within.low, within.high, margin.p_below()
    return TaskVerdict(name, *figures, verdict, note)


def _align(task: str, old: TaskResult, new: TaskResult, metric: str, limit: float) -> TaskPair:
    metric = find_metric(new.settings, metric)
    before, now = _values(old.problems, metric), _values(new.problems, metric)
    if before is None or now is None:
        if metric in (*_RATIOS, "truncated"):
            why = next(filter(None, (old.no_costs, new.no_costs)), "no tokens are counted")
            raise ResultsError(f"{task}: {metric} by problem is in the run_dir alone: {why}")
        metrics = ", ".join(name for name in old.problems.values if name in new.problems.values)
        raise ResultsError(f"{task} has no metric '{metric}' in both runs; it has {metrics}")
    same = new.problems.texts == old.problems.texts and np.array_equal(before, now)
    before, now = (statistics.by_cluster(values, new.problems.clusters) for values in (before, now))
    sides = [side.problems.values["tokens"] for side in (old, new)] if metric in _RATIOS else []
    tokens = [statistics.sum_clusters(values, new.problems.clusters) for values in sides]
    margins = [now - before + limit, *([before - now + limit] if metric in CHANGES else [])]
    return TaskPair(before, now, margins, same, len(new.problems), tokens)


def _judge(parts: Sequence[TaskPair], metric: str, confidence: float) -> TaskVerdict:
    before = float(np.mean([part.before.mean() for part in parts]))
    now = float(np.mean([part.now.mean() for part in parts]))
    difference = Difference.average([part.measure(part.now - part.before) for part in parts])
    interval = statistics.within_shares(difference.interval(confidence))
    if all(part.same for part in parts):
        return TaskVerdict(metric, before, now, now - before, now - before, now - before, 1.0, "pass", SAME)
    measured = [[part.measure(values) for values in part.margins] for part in parts]
    margins = [Difference.average(of_end) for of_end in zip(*measured, strict=True)]
    spans = [margin.interval(confidence) for margin in margins]
    p_value = min(1.0, len(margins) * min(margin.p_below() for margin in margins))
    verdict = "regressed" if any(span.high < 0 for span in spans) else "inconclusive"
    verdict = "pass" if all(span.low >= 0 for span in spans) else verdict
    count = sum(part.problems for part in parts)
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
