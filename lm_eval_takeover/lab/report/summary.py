"""The page's table: a row per task and run, with Recovery and what it cost."""

from collections.abc import Sequence

from lm_eval_takeover.lab.analysis.outcomes import K
from lm_eval_takeover.lab.analysis.pooling import MEAN
from lm_eval_takeover.lab.report.inputs import Analysis
from lm_eval_takeover.results.recovery import Trio
from lm_eval_takeover.results.statistics import Values, as_values, count_observations
from lm_eval_takeover.results.summary import Figure, Rates, Summary, average, choose_averaged, recover, summarize_correct
from lm_eval_takeover.runs.facts import find_missed_rate
from lm_eval_takeover.runs.run_reader import RunReader
from lm_eval_takeover.tasks.metrics import pass_at_k

MISSING = "–"
_Counts = dict[int, tuple[int, int]]  # by problem how many of how many samples are correct


def find_k(analysis: Analysis) -> int:
    """The k of Pass@k: 8, or fewer if a problem has fewer samples."""
    return min([K, *(len(samples) for problems in analysis.samples.values() for samples in problems.values())])


def list_columns(k: int) -> list[tuple[str, str]]:
    """Headings, and what they mean."""
    return [
        ("Acc", "mean over samples, with its 95 % interval over problems"),
        (f"Pass@{k}", f"problems that any of {k} samples solves, with its 95 % interval"),
        ("Recovery against the guide, Acc", "(run - base) / (guide - base), with Fieller's 95 % interval"),
        (f"Recovery against the guide, Pass@{k}", f"the same for Pass@{k}"),
        ("Realized rate", "share of tokens taken over; † off the rate that was asked for"),
        ("Guide passes / token", "forward passes of one row, prefill apart"),
        ("Tokens / s", "of the whole run, all its tasks together"),
        ("Truncated", "share of the samples that the token limit cut off"),
    ]


def list_rows(analysis: Analysis) -> list[tuple[str, str, list[str]]]:
    """`(task, run, cells)` by task, `mean` last, and run."""
    k = find_k(analysis)
    tasks = sorted({task for run in analysis.runs.values() for task in run.tasks})
    rows = []
    for task in [*tasks, *([MEAN] if len(tasks) > 1 else [])]:
        inside = choose_averaged(tasks) if task == MEAN else [task]
        for name, run in analysis.runs.items():
            if any(name not in run.tasks for name in inside):
                continue
            parts = [_summarize(analysis, name, part, k) for part in inside]
            summary = average(parts) if len(parts) > 1 else parts[0]
            scores = [_show(figure, ".1%") for figure in (summary.acc, summary.score(f"pass@{k}"))]
            recoveries = [_show(_recover(analysis, name, inside, of), "z.0%") for of in (None, k)]
            rows.append((task, name, [*scores, *recoveries, *_show_costs(summary.rates, run)]))
    return rows


def _show(figure: Figure, form: str) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return MISSING
    return f"{figure.value:{form}}\n[{figure.low:{form}}, {figure.high:{form}}]"


def _show_costs(rates: Rates, run: RunReader) -> list[str]:
    """Means over tasks of ratios of sums; tokens per second of the whole run."""
    written, taken = (sum(getattr(each.stored, name) for each in run.stored_samples()) for name in ("tokens", "takeovers"))
    missed = find_missed_rate(run.takeover, taken / max(written, 1)) is not None
    return [
        f"{rates.realized_rate:.1%}{' †' * missed}",
        f"{rates.guide_passes_per_token:.2f}",
        f"{written / run.seconds:,.0f}" if run.seconds > 0 else MISSING,
        f"{rates.truncated:.1%}",
    ]


def _summarize(analysis: Analysis, name: str, task: str, k: int) -> Summary:
    """One task of a run; without scores where its samples were not verified."""
    samples = [sample.stored for sample in analysis.runs[name].answered if sample.task == task]
    tokens = max(sum(stored.tokens for stored in samples), 1)
    rates = Rates(
        realized_rate=sum(stored.takeovers for stored in samples) / tokens,
        guide_passes_per_token=sum(stored.guide_passes for stored in samples) / tokens,
        truncated=sum(stored.truncated for stored in samples) / len(samples),
    )
    counts = _count_correct(analysis, name, task)
    if counts is None:
        return Summary({}, rates, None, None, k)
    return summarize_correct([right for right, _ in counts.values()], [n for _, n in counts.values()], k, rates)


def _count_correct(analysis: Analysis, name: str, task: str) -> _Counts | None:
    """None where some samples were not verified."""
    by_doc = {doc: samples for (of_task, doc), samples in analysis.samples[name].items() if of_task == task}
    if any(sample.outcome is None for samples in by_doc.values() for sample in samples):
        return None
    return {doc: (sum(sample.correct for sample in samples), len(samples)) for doc, samples in by_doc.items()}


def _recover(analysis: Analysis, name: str, tasks: Sequence[str], k: int | None) -> Figure:
    """Recovery in Acc, or Pass@k, against the guide; empty where the runs have other problems."""
    if analysis.runs[name].written_by is not None or not (analysis.base and analysis.guide):
        return Figure()
    trios = []
    for task in tasks:
        counts = [_count_correct(analysis, run, task) for run in (name, analysis.base, analysis.guide)]
        if not counts[0] or any(not problems or problems.keys() != counts[0].keys() for problems in counts):
            return Figure()
        guided, base, guide = (_measure_problems(problems, k) for problems in counts if problems)
        samples = next(iter(counts[0].values()))[1]
        trios.append(Trio(guided, base, guide, count_observations("acc" if k is None else f"pass@{k}", samples)))
    return recover(trios)


def _measure_problems(counts: _Counts, k: int | None) -> Values:
    """Acc or Pass@k of each problem, in their order."""
    return as_values([right / n if k is None else pass_at_k(n, right, k) for _, (right, n) in sorted(counts.items())])
