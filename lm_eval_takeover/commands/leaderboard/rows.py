"""The rows of the table from runs: cells with intervals, averages, what Recovery is measured against, and what differs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lm_eval_takeover.commands.leaderboard.recoveries import (
    describe_recovery,
    find_base,
    find_reference,
    warn_of_references,
)
from lm_eval_takeover.commands.leaderboard.versus import compare_rows
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.runs import MATHEMATICAL, PREFIX, Run, TaskResult, read_runs
from lm_eval_takeover.results.settings import describe_varying
from lm_eval_takeover.results.statistics import average_interval

_ORDER = ("base", "guided", "random", "early", "thinking", "guide", "other")


@dataclass(frozen=True)
class Row:
    """A run with its kind in the table and its name there."""

    run: Run
    kind: str
    name: str


def build_board(results: Sequence[Path], thinking: Sequence[Path], versus: Path | None) -> dict[str, Any]:
    """`rows` and `warnings`, as `--format json` prints them. Raises ResultsError, ArgumentError."""
    ours, notes = read_runs(results)
    thinkers, more = read_runs(thinking)
    sources = {run.source for run in thinkers}
    runs = [(run, run.kind) for run in ours if run.source not in sources] + [(run, "thinking") for run in thinkers]
    rows = name_rows(runs)
    if not rows and (results or thinking):
        reasons = "; ".join([*notes, *more]) or "their rows are those of --thinking"
        given = ", ".join(f"'{path}'" for path in [*results, *thinking])
        raise ArgumentError(f"nothing can be shown of {given}: {reasons}")
    averaged = list_averaged_tasks(rows)
    board = {
        "rows": [describe_row(row, rows, averaged) for row in rows],
        "warnings": [*notes, *more, *warn_of_references(rows), *list_warnings(rows, averaged)],
    }
    if versus is not None:
        compare_rows(board, rows, averaged, versus)
    return board


def _list_verifiers(run: Run) -> list[str]:
    """Who judged the samples, beside our own verifier."""
    return sorted({result.verifier for result in run.tasks.values()} - {"takeover"})


def name_rows(runs: Sequence[tuple[Run, str]]) -> list[Row]:
    """In the order of Table 3: by base, then by kind, then by rate; equal names are told apart by what differs."""

    def place(pair: tuple[Run, str]) -> tuple[Any, ...]:
        run, kind = pair
        family = str(run.settings.get("base")) if kind in ("base", "guided", "random", "early") else "~"
        return family, _ORDER.index(kind), run.takeover.get("realized_rate") or 0, run.model, str(run.source)

    found = sorted(runs, key=place)
    names = [", ".join([_name(run, kind), *_list_verifiers(run)]) for run, kind in found]
    names = [
        f"{name}, {_show_rate(run)}" if names.count(name) > 1 else name
        for name, (run, _) in zip(names, found, strict=True)
    ]
    seen = Counter[str]()
    rows = []
    for name, (run, kind) in zip(names, found, strict=True):
        seen[name] += 1
        rows.append(Row(run, kind, f"{name} [{seen[name]}]" if names.count(name) > 1 else name))
    return rows


def _name(run: Run, kind: str) -> str:
    takeover = run.takeover
    if kind in ("random", "early"):
        return f"{run.model} + {kind.capitalize()}"
    if kind == "guided" and takeover.get("policy") not in (
        "disagreement",
        "entropy",
    ):  # another paper's, or a plug-in's
        return f"{run.model} + {str(takeover.get('policy')).capitalize()}"
    if kind == "guided":
        parts = [str(takeover.get("score"))] if takeover.get("score") != "ce" else []
        parts += ["reverse"] if takeover.get("direction") == "reverse" else []
        return " ".join([run.model, "+ Guided", *([f"({', '.join(parts)})"] if parts else [])])
    return f"{run.model} ({kind})" if kind in ("guide", "thinking") else run.model


def _show_rate(run: Run) -> str:
    rate = run.takeover.get("realized_rate")
    return f"{rate:.1%}" if isinstance(rate, float) else "rate not known"


def list_averaged_tasks(rows: Sequence[Row]) -> list[str]:
    """The mathematical tasks that the table shows; all of them where none is."""
    shown = list(dict.fromkeys(task for row in rows for task in row.run.tasks))
    return [task for task in MATHEMATICAL if task in shown] or sorted(shown)


def describe_row(row: Row, rows: Sequence[Row], averaged: Sequence[str]) -> dict[str, Any]:
    run, takeover = row.run, row.run.takeover
    cells = {task: describe_cell(result) for task, result in run.tasks.items()}
    missing = [task for task in averaged if task not in run.tasks]
    average = None if missing else describe_average([run.tasks[task] for task in averaged])
    described: dict[str, Any] = {
        "model": row.name,
        "kind": row.kind,
        "source": "measured",
        "nominal": next(
            (takeover[n] for n in ("rate", "target_rate", "spike_ratio") if takeover.get(n) is not None), None
        ),
        "realized_rate": takeover.get("realized_rate"),
        "tasks": cells,
        "average": average,
        **({"average_why": f"without {', '.join(missing)}"} if missing else {}),
    }
    base, reference = find_base(row, rows), find_reference(row, rows)
    described["recovery"] = describe_recovery(row, base, reference, averaged)
    described["reference"] = reference.name if reference else None
    described["cost"] = describe_cost(run)
    described["results"] = str(run.source)
    return described


def cell_name(metric: str) -> str:
    """Of a metric in a cell: `pass8` of `pass@8`."""
    return metric.replace("@", "")


def list_cell_metrics(results: Sequence[TaskResult]) -> list[str]:
    """`acc`, and the Pass@k and Maj@n that all of these have; those of 8 samples always, which may be null."""
    shared = [metric for metric in results[0].means if all(metric in other.means for other in results[1:])]
    return list(dict.fromkeys(["acc", "pass@8", "maj@8", *(metric for metric in shared if "@" in metric)]))


READING = ("acc_boxed", "unboxed", "no_answer")  # how much of Acc rests on reading answers without a box


def describe_cell(result: TaskResult) -> dict[str, Any]:
    """Acc, and the Pass@k and Maj@n that there are, with intervals, which are null without samples; `k` is that of tables."""
    cell: dict[str, Any] = {"k": result.k}
    for metric in list_cell_metrics([result]):
        interval, name = result.measure(metric), cell_name(metric)
        cell |= {
            name: result.means.get(metric),
            f"{name}_low": interval.low if interval else None,
            f"{name}_high": interval.high if interval else None,
        }
    cell |= {"metric": result.accuracy} if result.accuracy != "acc" else {}
    return cell | {
        **{name: result.means.get(name) for name in READING},
        "unparsed": result.means.get("unparsed"),
        "truncated": share_truncated(result),
        "problems": result.count,
        "samples": result.samples,
        "task_rate": result.counts.realized_rate,
    }


def share_truncated(result: TaskResult) -> float | None:
    """The share of samples that their token limit ended; None where neither a metric nor a run_dir tells."""
    if "truncated" in result.means:
        return result.means["truncated"]
    costs = result.read_costs()
    if costs is None or result.problems is None:
        return None
    return float(costs.truncated.sum()) / (len(result.problems) * result.problems.samples)


def describe_average(results: Sequence[TaskResult]) -> dict[str, Any]:
    """The unweighted mean over tasks; `k` is that of tables, null where tasks differ in it."""
    ks = {result.k for result in results}
    cell: dict[str, Any] = {"k": ks.pop() if len(ks) == 1 else None}
    for metric in list_cell_metrics(results):
        name = cell_name(metric)
        parts = [result.measure(metric) for result in results]
        known = [part for part in parts if part is not None]
        interval = average_interval(known) if len(known) == len(parts) else None
        means = [result.means[metric] for result in results if metric in result.means]
        cell |= {
            name: sum(means) / len(means) if len(means) == len(results) else None,
            f"{name}_low": interval.low if interval else None,
            f"{name}_high": interval.high if interval else None,
        }
    samples = {result.samples for result in results}
    rates: list[Any] = [result.counts.realized_rate for result in results]
    for name in READING:
        known_means = [result.means[name] for result in results if name in result.means]
        cell[name] = sum(known_means) / len(results) if len(known_means) == len(results) else None
    return cell | {
        "problems": sum(r.count for r in results),
        "samples": samples.pop() if len(samples) == 1 else None,
        "task_rate": None if None in rates else sum(rates) / len(rates),
    }


def describe_cost(run: Run) -> dict[str, Any]:
    """Passes and weights per emitted token, seconds per problem; null where the results do not say.

    Every model that the policy asks reads every token, so a token counts the weights of all of them.
    """
    tokens = run.takeover.get("tokens") or 0
    problems = sum(result.count for result in run.tasks.values())
    return {
        "base_passes_per_token": run.takeover["base_passes"] / tokens if tokens else None,
        "guide_passes_per_token": run.takeover["guide_passes"] / tokens if tokens else None,
        "active_parameters": sum(run.parameters.values()) or None,
        "seconds_per_problem": run.seconds / problems if run.seconds is not None and problems else None,
    }


def list_warnings(rows: Sequence[Row], averaged: Sequence[str]) -> list[str]:
    """What differs between rows, and what cannot be computed for want of samples; lines that several tasks share stand once."""
    tasks_of: dict[str, list[str]] = {}
    for task in dict.fromkeys([*averaged, *(task for row in rows for task in row.run.tasks)]):
        for line in _list_task_warnings({row.name: row.run.tasks[task] for row in rows if task in row.run.tasks}):
            tasks_of.setdefault(line, []).append(task.removeprefix(PREFIX))
    lines = [f"{line} ({', '.join(tasks)})" for line, tasks in tasks_of.items()]
    versions = {row.name: row.run.versions for row in rows}
    return lines + [f"rows differ in the version of {line}" for line in describe_varying(versions)]


def _list_task_warnings(having: dict[str, TaskResult]) -> list[str]:
    """Of one task, by row name."""
    settings = {
        name: result.settings | {"problems": result.count, "verifier": result.verifier}
        for name, result in having.items()
    }
    lines = [f"rows differ in {line}" for line in describe_varying(settings)]
    sets = {frozenset(result.problems.ids) for result in having.values() if result.problems}
    if len(sets) > 1 and len({result.count for result in having.values()}) == 1:
        lines.append("rows have the same number of problems, but not the same problems")
    if without := [name for name, result in having.items() if result.problems is None]:
        lines.append(
            f"no samples of {', '.join(without)}, so no intervals, no comparisons, and Recovery without interval; run with "
            "--log_samples"
        )
    return lines
