"""Judges a run: `regressed` or `pass` if an interval says so, else `inconclusive`. The average is judged as a task is.

Where both runs draw with the same random numbers, `find_changed` counts the answers that changed their verdict, and tests them.
Before a run, `plan` says which drops a baseline can find by these intervals. It simulates: problems' chances are drawn given what
the baseline scored, then a baseline and new runs with them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt

import numpy as np
from scipy.special import bdtrc, betaincinv, expit, logit, ndtri

from lm_eval_takeover.commands._output import show_p
from lm_eval_takeover.errors import ArgumentError, ResultsError, nearest
from lm_eval_takeover.results import statistics
from lm_eval_takeover.results.documents import Settings, find_differences
from lm_eval_takeover.results.files import Run, TaskResult
from lm_eval_takeover.results.problems import ACC, Problems, align
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
MOST_PROBLEMS = 100_000  # a plan names no larger number
_HALVINGS = 26  # of 60 log-odds: to a millionth
_EDGE = 1e-9  # probabilities are kept that far from 0 and 1


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
    """Whether a task draws no random number: by its temperature, else by `do_sample`."""
    temperature = settings.get("temperature")
    return float(temperature) == 0 if temperature is not None else not settings.get("do_sample")


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


def check_settings(old: Run, new: Run, allowed: Sequence[str], where: str) -> list[str]:
    """List what differs, all of it allowed, in runs of the same problems. Raises ArgumentError that lists all else."""
    pairs = {task: (side, new.tasks[task]) for task, side in sorted(old.tasks.items())}
    sides = [("", old.settings, new.settings)]
    sides += [(f"{task} ", one.settings, other.settings) for task, (one, other) in pairs.items()]
    names = {"prompts", *(name for _, *both in sides for settings in both for name in settings)}
    found = dict[str, str]()  # by line the name of the setting
    for place, before, now in sides:
        found |= {f"{place}{line}": name for name, line in find_differences(before, now).items()}
    for task, (one, other) in pairs.items():
        prompts = [dict(zip(side.problems.ids, side.problems.prompts, strict=False)) for side in (one, other)]
        if all(prompts) and prompts[0] != prompts[1] and one.settings == other.settings:
            found[f"{task} prompts: others, though all settings are the same; other examples?"] = "prompts"
    for name in allowed:
        if name not in names:
            differing = f"; they differ in {', '.join(sorted({*found.values()}))}" if found else ""
            raise ArgumentError(f"--allow '{name}' is not a setting of these runs; {nearest(name, names)}{differing}")
    again = ", judge the older run again with `rescore`" if "scorer" in found.values() else ""
    if refused := [line for line, name in found.items() if name not in allowed]:
        raise ArgumentError(
            f"settings differ from {where}: {'; '.join(refused)}; run with the baseline's settings{again}, accept these with "
            f"`--allow {' '.join(sorted({*allowed, *found.values()}))}`, or take this run as the new baseline with --update"
        )
    return list(found)


def align_runs(old: Run, new: Run, max_missing: float) -> tuple[Run, Run]:
    """Both runs, of the problems that both have. Raises ResultsError if one lacks a task, or too many problems."""
    for ours, theirs, where in ((old, new, "the run"), (new, old, "the baseline")):
        if missing := sorted(ours.tasks.keys() - theirs.tasks.keys()):
            raise ResultsError(f"{', '.join(missing)}: missing in {where}; choose common tasks with --tasks, or --update")
    kept = [dict[str, TaskResult](), dict[str, TaskResult]()]
    for task, results in {task: (old.tasks[task], new.tasks[task]) for task in old.tasks}.items():
        before, now = (result.problems for result in results)
        if (sides := align([before, now], max_missing)) is None:
            lost = {"the run": {*before.ids} - {*now.ids}, "the baseline": {*now.ids} - {*before.ids}}
            where = max(lost, key=lambda name: len(lost[name]))
            raise ResultsError(
                f"{task}: the baseline has {len(before)} problems, the run {len(now)}; {len(lost[where])} are missing in "
                f"{where}, and at most a share of {max_missing:g} may be (--max_missing); use the same --limit, or write a new "
                "baseline with --update"
            )
        if before.samples != now.samples:
            raise ResultsError(f"{task}: {now.samples} samples a problem, the baseline has {before.samples}")
        for tasks, result, problems in zip(kept, results, sides, strict=True):
            tasks[task] = replace(result, problems=problems)
    return replace(old, tasks=kept[0]), replace(new, tasks=kept[1])


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


@dataclass(frozen=True)
class Design:
    """The rule of a simulation, and the samples of each problem (None: as many as the baseline has)."""

    limit: float
    confidence: float
    samples: int | None = None
    simulations: int = 2000
    part: float = 1.0  # of the error rate: of several tasks each has its part, by Holm's correction

    @property
    def level(self) -> float:
        """The one-sided p-value from which a drop counts as one."""
        return self.part * (1 - self.confidence) / 2

    @property
    def reach(self) -> float:
        """How many standard errors a drop must be beyond the limit, so that 80 % of runs find it."""
        return float(ndtri(POWER) - ndtri(self.level))


@dataclass(frozen=True)
class Power:
    """The chance to find a drop, None where a task's Acc is below it."""

    task: str
    problems: int
    samples: int
    drop: float
    power: float | None  # if it shifts all problems' log-odds alike
    power_whole: float | None  # if whole problems are lost
    problems_for_80: int | None  # for `power` of 80 %; None where it is too large


def plan(baseline: Run, design: Design, drops: Sequence[float], tasks: bool = True) -> list[Power]:
    """Plan by task and drop, and for the average over tasks, if there is one; without `tasks` for this alone."""
    averaged = choose_averaged(baseline.tasks)
    groups = {task: [side] for task, side in baseline.tasks.items()}
    groups |= {AVERAGE: [baseline.tasks[task] for task in averaged]} if len(averaged) > 1 else {}
    # One task falls at a time, so it must be found at the first step of Holm's correction over all that `compare` judges.
    weights = dict(zip(groups, weigh(groups), strict=True))
    designs = {name: replace(design, part=weight / sum(weights.values())) for name, weight in weights.items()}
    planned = [name for name in groups if tasks or name == AVERAGE or AVERAGE not in groups]
    return [_plan_drop(name, groups[name], designs[name], drop) for name in planned for drop in drops]


def _plan_drop(name: str, sides: Sequence[TaskResult], design: Design, drop: float) -> Power:
    count = sum(len(side.problems) for side in sides)
    samples = design.samples or sides[0].problems.samples
    if drop >= min(float(side.problems.values[ACC].mean()) for side in sides):
        return Power(name, count, samples, drop, None, None, None)
    shifted, lost = (_simulate(sides, design, drop, whole) for whole in (False, True))
    power, whole = (round(_measure_power(margins, design), 4) for margins in (shifted, lost))
    return Power(name, count, samples, drop, power, whole, _count_needed(shifted, design, count))


def _simulate(sides: Sequence[TaskResult], design: Design, drop: float, whole: bool) -> list[Difference]:
    """How far runs with this drop are inside the limit, as differences from a baseline that is drawn, too."""
    generator, parts = np.random.default_rng(0), []
    for side in sides:
        samples, kept = design.samples or side.problems.samples, side.problems.samples
        shares = np.clip(statistics.by_cluster(side.problems.values["acc"], side.problems.clusters), 0, 1)
        before = generator.beta(*statistics.fit_chances(shares, kept), (design.simulations, len(shares)))
        before = generator.permuted(np.clip(before, _EDGE, 1 - _EDGE), axis=1)  # which problems are lost is random
        old = draw_scores(generator, before, max(samples, kept))  # a baseline with fewer samples is made anew
        after = _lose(generator, before, drop) if whole else lower(before, drop)
        parts.append(draw_scores(generator, after, samples) - old + design.limit)
    return [statistics.average_differences(values) for values in zip(*parts, strict=True)]


def _measure_power(margins: Sequence[Difference], design: Design) -> float:
    return float(np.mean([margin.p_below() <= design.level for margin in margins]))


def _count_needed(margins: Sequence[Difference], design: Design, count: int) -> int | None:
    """The problems for which 80 % of runs find the drop: by how many standard errors it is beyond the limit with `count`."""
    power = _measure_power(margins, design)
    beyond = -float(np.mean([margin.value for margin in margins]))
    errors = max(beyond, 1e-9) / float(np.sqrt(np.mean([margin.error**2 for margin in margins])))
    if power > 0.2:  # what nearly all runs find may need far fewer problems, and never more
        errors = max(errors * (power > 0.99), float(ndtri(min(power, 0.99)) - ndtri(design.level)))
    needed = count * (design.reach / errors) ** 2 if errors > 0 else np.inf
    return ceil(needed) if needed <= MOST_PROBLEMS else None


def lower(probabilities: Values, drop: float) -> Values:
    """Shift all log-odds of a row by the one amount that lowers its mean by `drop`."""
    odds = logit(probabilities)
    target = probabilities.mean(axis=1) - drop
    low, high = np.full(len(odds), -60.0), np.zeros(len(odds))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = expit(odds + middle[:, np.newaxis]).mean(axis=1) > target
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(expit(odds + low[:, np.newaxis]))


def _lose(generator: np.random.Generator, probabilities: Values, drop: float) -> Values:
    """Set the first probabilities of a row to 0, so many that its mean falls by `drop`."""
    worth = probabilities / probabilities.shape[1]
    # The last problem that is lost is so with the chance that makes the drop exact.
    share = (drop - (worth.cumsum(axis=1) - worth)) / worth
    return np.where(generator.random(worth.shape) < share, _EDGE, probabilities)


def draw_scores(generator: np.random.Generator, chances: Values, samples: int) -> Values:
    return generator.binomial(samples, chances) / samples
