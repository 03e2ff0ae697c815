"""Renders the page: tables, figures, data and rollouts in a template, under a content security policy.

Its table has a row per task and run, with Recovery and what it cost.
"""

import argparse
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal, make_page_policy
from lm_eval_takeover.lab.measures.figures import DRAWN
from lm_eval_takeover.lab.measures.outcomes import K
from lm_eval_takeover.lab.measures.pooling import MEAN
from lm_eval_takeover.lab.report.inputs import CAPTIONS, Analysis, read_effects, read_figure
from lm_eval_takeover.lab.report.rollouts import list_picks, pack_picks
from lm_eval_takeover.lab.report.story import tell_story
from lm_eval_takeover.pair.pieces import Pieces
from lm_eval_takeover.results.problems import derive_pass_at_k
from lm_eval_takeover.results.statistics import Trio, as_values, count_observations
from lm_eval_takeover.results.summary import Figure, Rates, Summary, average, choose_averaged, recover, summarize_correct
from lm_eval_takeover.runs.facts import find_missed_rate
from lm_eval_takeover.runs.layout import SAMPLES
from lm_eval_takeover.runs.run_reader import Answered, RunReader

MAX_PROBLEM, MAX_ANSWER = 20_000, 2_000  # characters that are shown of one
MISSING = "–"
_BLOCK = len('<script type="text/plain" data-rollout="00000"></script>\n')
_PAGE = files("lm_eval_takeover.lab.report") / "page"


def build(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ArgumentError for what cannot be read or written, or does not fit."""
    analysis = Analysis.read(options.analysis)
    groups = list_picks(analysis)
    effects = read_effects(options.effects) if options.effects else None
    pieces = _load_pieces(analysis, options.tokenizer)
    story = tell_story(analysis, pieces, groups)
    page = render(analysis, make_index(analysis, ()), [], 0, effects, story)
    limit = int(options.max_size * 1e6)
    total = len({(name, sample.stored.key) for group in groups for name, sample in group})
    # The index gains a number for each rollout that is embedded, and each has a block of its own.
    room = limit - len(page.encode()) - total * (_BLOCK + 6)
    if room < 0:
        raise ArgumentError(
            f"--max_size {options.max_size}: the page needs {(limit - room) / 1e6:.1f} MB before any answer is in it; allow more"
        )
    packed = pack_picks(analysis, groups, pieces, choose_score(analysis), room)
    page = render(analysis, make_index(analysis, packed), list(packed.values()), total, effects, story)
    write_file("out", options.out, page)
    print(f"{len(packed):,} of {total:,} answers, {options.out.stat().st_size / 1e6:.1f} MB -> {options.out}")
    return 0


def choose_score(analysis: Analysis) -> str:
    """By which base rollouts are tinted: as the compared run's gate decides."""
    run = analysis.runs.get(analysis.compared or "")
    return str((run.takeover.get("score") if run else None) or "ce")


def _load_pieces(analysis: Analysis, tokenizer: str | None) -> dict[str, Pieces]:
    """By run; one for runs that name one tokenizer."""
    keys = {name: (run.arguments.get("guide"), run.arguments.get("base")) for name, run in analysis.runs.items()}
    readers = {keys[name]: run for name, run in analysis.runs.items()}
    loaded = {key: Pieces(run.load_tokenizer(tokenizer)) for key, run in readers.items()}
    return {name: loaded[key] for name, key in keys.items()}


def make_index(analysis: Analysis, packed: Collection[tuple[str, bytes]]) -> dict[str, Any]:
    """The page's data on all samples; those that are embedded by run and key, in the order of their blocks."""
    names, places = list(analysis.runs), {key: place for place, key in enumerate(packed)}
    outcomes: dict[str | None, int] = {}
    problems = []
    for key in analysis.problems:
        prompts = next((run.prompts[key] for run in analysis.runs.values() if key in run.prompts), [])
        prompt = prompts[0] if prompts else {"problem": None, "answer": None}
        texts = {"problem": _clip(prompt["problem"], MAX_PROBLEM), "gold": _clip(prompt["answer"], MAX_ANSWER)}
        asked = {name: analysis.samples[name].get(key, []) for name in names}
        runs = [[_describe_sample(one, outcomes, places.get((name, one.stored.key))) for one in asked[name]] for name in names]
        problems.append({"task": key[0], "doc": key[1], **texts, "runs": runs})
    return {
        "runs": [_describe_run(name, run) for name, run in analysis.runs.items()],
        "base": names.index(analysis.base) if analysis.base else None,
        "compared": names.index(analysis.compared) if analysis.compared else None,
        "score": choose_score(analysis),
        "outcomes": list(outcomes),
        "problems": problems,
    }


def _describe_run(name: str, run: RunReader) -> dict[str, Any]:
    settings = {key: run.takeover.get(key) for key in ("tau", "kappa", "window", "score")}
    return {"name": name, "policy": run.policy, "host": run.host, "donor": run.donor, **settings}


def _describe_sample(sample: Answered, outcomes: dict[str | None, int], place: int | None) -> list[Any]:
    """`[sample, outcome, answer, cut off, tokens, takeovers]`, and the number of its block if it has one."""
    outcome, stored = outcomes.setdefault(sample.outcome, len(outcomes)), sample.stored
    known = [sample.sample, outcome, _clip(sample.answer, MAX_ANSWER), int(stored.truncated), stored.tokens, stored.takeovers]
    return known if place is None else [*known, place]


def _clip(text: str | None, limit: int) -> str | None:
    if text is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text) - limit:,} characters more)"


def render(
    analysis: Analysis,
    index: Mapping[str, Any],
    blocks: list[str],
    total: int,
    effects: Mapping[str, Any] | None,
    story: Mapping[str, Any] | None,
) -> str:
    style, script = _read("report.css"), _read("report.js")
    temml = f"/*! {_read('temml.LICENSE')}*/\n{_read('temml.min.js')}"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = for_terminal
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    reasons: dict[str, list[str]] = {}
    for name, reason in analysis.cannot_show.items():
        reasons.setdefault(reason, []).append(name)
    # The frontier of the comparison that the runs are rows of, then the figures of the analysis.
    rows = {run.folder.absolute().parent for run in analysis.runs.values() if run.folder.name == SAMPLES}
    figures = sorted(path for path in {row.parent / "frontier.svg" for row in rows} if path.exists())[:1]
    figures += [analysis.folder / f"{name}.svg" for name in analysis.names if name in DRAWN and name in CAPTIONS]
    return environment.from_string(_read("report.html.jinja")).render(
        version=__version__,
        policy=make_page_policy([temml, script], style),
        style=Markup(style),
        scripts=[Markup(temml), Markup(script)],
        runs=[_describe_run(name, run) for name, run in analysis.runs.items()],
        columns=list_columns(find_k(analysis)),
        rows=list_rows(analysis),
        figures=[(path.stem, CAPTIONS[path.stem], read_figure(path)) for path in figures],
        effects=effects,
        story=story,
        captions=CAPTIONS,
        reasons={", ".join(names): reason for reason, names in reasons.items()},
        index=index,
        blocks=blocks,
        total=total,
    )


def _read(name: str) -> str:
    text = (_PAGE / name).read_text(encoding="utf-8")
    return text if name.endswith(".jinja") else text.replace("\r\n", "\n")


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


def _count_correct(analysis: Analysis, name: str, task: str) -> dict[int, tuple[int, int]] | None:
    """By problem, in order, how many of how many samples are correct; None where some were not verified."""
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
        values = []
        for problems in filter(None, counts):
            right, drawn = (as_values(numbers) for numbers in zip(*problems.values(), strict=True))
            values.append(right / drawn if k is None else derive_pass_at_k(right / drawn, drawn, k))
        guided, base, guide = values
        samples = next(iter(counts[0].values()))[1]
        trios.append(Trio(guided, base, guide, count_observations("acc" if k is None else f"pass@{k}", samples)))
    return recover(trios)
