"""Renders the page: tables, figures, data and rollouts in a template, under a content security policy.

Its table has a row per task and run, with Recovery and what it cost.
"""

import argparse
import base64
import json
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal, make_page_policy
from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures.figures import DRAWN, SIZE, draw_overview
from lm_eval_takeover.lab.measures.outcomes import K
from lm_eval_takeover.lab.measures.pooling import MEAN
from lm_eval_takeover.lab.report.inputs import CAPTIONS, Analysis, clean_figure, read_effects, read_figure
from lm_eval_takeover.lab.report.story import tell_accuracy, tell_story
from lm_eval_takeover.lab.score_files import (
    SampleTokens,
    column_of,
    list_score_files,
    make_sample,
    read_header,
    read_scored_samples,
)
from lm_eval_takeover.pair.vocabulary import Pieces
from lm_eval_takeover.results.problems import derive_pass_at_k
from lm_eval_takeover.results.statistics import Trio, Values, as_values, average_differences, within_shares
from lm_eval_takeover.results.summary import Figure, Rates, Summary, average, choose_averaged, recover, summarize_correct
from lm_eval_takeover.runs.identity import find_missed_rate
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
    summaries = summarize_tasks(analysis)
    head, rows = next(iter(summaries)), list_rows(analysis, summaries)
    shown = {name: {"Acc": row.acc, f"Pass@{row.k}": row.passed} for name, row in summaries[head].items()}
    # The frontier of the comparison that the runs are rows of, then the figures of the analysis.
    folders = {run.folder.absolute().parent.parent for run in analysis.runs.values() if run.folder.name == SAMPLES}
    figures = sorted(path for path in {folder / "frontier.svg" for folder in folders} if path.exists())[:1]
    figures += [analysis.folder / f"{name}.svg" for name in analysis.names if name in DRAWN and name in CAPTIONS]
    return environment.from_string(_read("report.html.jinja")).render(
        version=__version__,
        policy=make_page_policy([temml, script], style),
        style=Markup(style),
        scripts=[Markup(temml), Markup(script)],
        runs=[_describe_run(name, run) for name, run in analysis.runs.items()],
        columns=list_columns(find_k(analysis), analysis.reference or "the guide"),
        rows=[row for row in rows if row[0] == head],
        other_rows=[row for row in rows if row[0] != head],
        overview=clean_figure(draw_svg(partial(draw_overview, rows=shown), SIZE).encode(), "overview", "overview"),
        costs=tell_costs(analysis, summaries[head]),
        lead=tell_accuracy(analysis, summaries[head]),
        difference=tell_difference(analysis, choose_averaged(analysis.tasks)),
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


def list_columns(k: int, reference: str) -> list[tuple[str, str]]:
    """Headings, and what they mean."""
    return [
        ("Acc", "mean over samples, with its 95 % interval over problems"),
        (f"Pass@{k}", f"problems that any of {k} samples solves, with its 95 % interval"),
        (f"Recovery against {reference}, Acc", f"(run - base) / ({reference} - base), with Fieller's 95 % interval"),
        (f"Recovery against {reference}, Pass@{k}", f"the same for Pass@{k}"),
        ("Realized rate", "share of tokens taken over; † off the rate that was asked for"),
    ]


def summarize_tasks(analysis: Analysis) -> dict[str, dict[str, Summary]]:
    """By task and run; the mean over tasks first, where there are several, with rates of all its tokens together."""
    k, tasks, summaries = find_k(analysis), analysis.tasks, dict[str, dict[str, Summary]]()
    for task in [*([MEAN] if len(tasks) > 1 else []), *tasks]:
        inside = choose_averaged(tasks) if task == MEAN else [task]
        for name, run in analysis.runs.items():
            if all(each in run.tasks for each in inside):
                counts = [_count_correct(analysis, name, part) for part in inside]
                known = [each for each in counts if each is not None]
                whole = Summary({}, Rates(), None, None, k)  # without scores where samples were not verified
                if len(known) == len(counts):
                    pairs = [zip(*each.values(), strict=True) for each in known]
                    whole = average([summarize_correct(right, drawn, k, Rates()) for right, drawn in pairs])
                rates = _measure_rates(analysis, name, inside)
                summaries.setdefault(task, {})[name] = replace(whole, rates=rates, k=k)
    return summaries


def list_rows(analysis: Analysis, summaries: Mapping[str, Mapping[str, Summary]]) -> list[tuple[str, str, list[str]]]:
    """`(task, run, cells)`, in the order of `summaries`."""
    rows = []
    for task, by_run in summaries.items():
        inside = choose_averaged(analysis.tasks) if task == MEAN else [task]
        for name, summary in by_run.items():
            scores = [_show(figure, ".1%") for figure in (summary.acc, summary.passed)]
            recoveries = [_show(_recover(analysis, name, inside, of), "z.0%") for of in (None, summary.k)]
            rate = summary.rates.realized_rate or 0.0
            mark = "" if find_missed_rate(analysis.runs[name].takeover, rate) is None else " †"
            rows.append((task, name, [*scores, *recoveries, f"{rate:.1%}{mark}"]))
    return rows


def _show(figure: Figure, form: str) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return MISSING
    return f"{figure.value:{form}}\n[{figure.low:{form}}, {figure.high:{form}}]"


def tell_costs(analysis: Analysis, rows: Mapping[str, Summary]) -> str:
    """`Guide passes per token: base 0.00, guided 0.29. Tokens per second: base 1,204, guided 811.`"""
    passes = {name: f"{row.rates.guide_passes_per_token or 0.0:.2f}" for name, row in rows.items()}
    tokens = {name: sum(one.stored.tokens for one in analysis.runs[name].stored_samples()) for name in rows}
    seconds = {name: analysis.runs[name].seconds for name in rows}
    speeds = {name: f"{tokens[name] / seconds[name]:,.0f}" for name in rows if seconds[name] > 0}
    cut = {name: f"{row.rates.truncated:.1%}" for name, row in rows.items() if row.rates.truncated}
    facts = {"Guide passes per token": passes, "Tokens per second": speeds, "Cut off by the token limit": cut}
    return " ".join(f"{what}: {', '.join(f'{name} {of[name]}' for name in of)}." for what, of in facts.items() if of)


def tell_difference(analysis: Analysis, tasks: Sequence[str]) -> str:
    """`Better than random takeovers: yes, …`: by Acc, paired by problem; empty where there are no two such runs."""
    parts = _read_problems(analysis, [analysis.compared, analysis.random], tasks)
    if parts is None:
        return ""
    difference = average_differences([ours - theirs for (ours, _), (theirs, _) in parts])
    interval, p = within_shares(difference.interval()), difference.p_value()
    low, high = (f"{100 * end:+.1f}" for end in (interval.low, interval.high))
    chance = "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
    answer = "yes" if interval.low > 0 else "no" if interval.high < 0 else "not shown"
    return f"Better than random takeovers: {answer}. Acc {100 * interval.value:+.1f} points ({low} to {high}, {chance})."


def _measure_rates(analysis: Analysis, name: str, tasks: Sequence[str]) -> Rates:
    """Of all samples of these tasks together."""
    samples = [sample.stored for sample in analysis.runs[name].answered if sample.task in tasks]
    tokens = max(sum(stored.tokens for stored in samples), 1)
    return Rates(
        realized_rate=sum(stored.takeovers for stored in samples) / tokens,
        guide_passes_per_token=sum(stored.guide_passes for stored in samples) / tokens,
        truncated=sum(stored.truncated for stored in samples) / len(samples),
    )


def _count_correct(analysis: Analysis, name: str, task: str) -> dict[int, tuple[int, int]] | None:
    """By problem, in order, how many of how many samples are correct; None where some were not verified."""
    by_doc = {doc: samples for (of_task, doc), samples in analysis.samples[name].items() if of_task == task}
    if any(sample.outcome is None for samples in by_doc.values() for sample in samples):
        return None
    return {doc: (sum(sample.correct for sample in samples), len(samples)) for doc, samples in by_doc.items()}


def _read_problems(
    analysis: Analysis, names: Sequence[str | None], tasks: Sequence[str]
) -> list[list[tuple[Values, Values]]] | None:
    """By task and run the share of correct samples of each problem, and their number; None where runs have other problems."""
    parts = []
    for task in tasks:
        counts = [_count_correct(analysis, name, task) for name in names if name is not None]
        if len(counts) < len(names) or not counts[0] or any(not each or each.keys() != counts[0].keys() for each in counts):
            return None
        pairs = [as_values(list(each.values())).T for each in filter(None, counts)]
        parts.append([(right / drawn, drawn) for right, drawn in pairs])
    return parts


def _recover(analysis: Analysis, name: str, tasks: Sequence[str], k: int | None) -> Figure:
    """Recovery in Acc, or Pass@k; empty where the runs have other problems."""
    parts = _read_problems(analysis, [name, analysis.base, analysis.reference], tasks)
    if analysis.runs[name].written_by is not None or parts is None:
        return Figure()
    scores = [[own if k is None else derive_pass_at_k(own, drawn, k) for own, drawn in part] for part in parts]
    return recover([Trio(*of_task) for of_task in scores])


UNKNOWN = 0xFFFF
_TRACED = ("token_id", "chosen_from", "score", "host_logprob", "donor_logprob", "donor_rank", "host_token_id")
_CHUNK = 128  # groups that are packed before it is seen whether there is room for more

Pick = tuple[str, Answered]  # run, sample


def list_picks(analysis: Analysis) -> list[list[Pick]]:
    """Groups of samples to embed, the most telling first: one sample of one problem in all runs.

    Problems come first whose samples the compared run has right more often than the base, or less. A problem's next sample comes
    after every other problem had as many; of a problem, samples that base and compared run judge differently come first.
    """
    beside, rounds = (analysis.base, analysis.compared), list[list[list[Pick]]]()
    by_run = [analysis.samples.get(name or "", {}) for name in beside]
    right = [{key: sum(one.correct for one in samples) for key, samples in problems.items()} for problems in by_run]
    changes = {key: abs(right[1][key] - right[0][key]) for key in right[0].keys() & right[1].keys()}
    for key in sorted(analysis.problems, key=lambda key: -changes.get(key, 0)):
        by_number: dict[int, dict[str, Answered]] = {}
        for name, problems in analysis.samples.items():
            for sample in problems.get(key, []):
                by_number.setdefault(sample.sample, {})[name] = sample
        verdicts = {n: {one.correct for name, one in by_number[n].items() if name in beside} for n in by_number}
        for place, number in enumerate(sorted(by_number, key=lambda n: (len(verdicts[n]) < 2, n))):  # what changed is first
            rounds.extend([] for _ in range(place + 1 - len(rounds)))
            rounds[place].append(list(by_number[number].items()))
    return [group for groups in rounds for group in groups]


def pack_picks(
    analysis: Analysis, groups: Sequence[Sequence[Pick]], pieces: Mapping[str, Pieces], score: str, room: int
) -> dict[tuple[str, bytes], str]:
    """Packed rollouts by run and key of the text: of the first groups that fit into `room` bytes, read in chunks."""
    packed: dict[tuple[str, bytes], str] = {}
    for start in range(0, len(groups), _CHUNK):
        chunk = groups[start : start + _CHUNK]
        rollouts = _pack_chunk(analysis, chunk, pieces, score)
        for group in chunk:
            keys = [(name, sample.stored.key) for name, sample in group]
            new = {key: rollouts[key] for key in keys if key in rollouts and key not in packed}
            needed = sum(map(len, new.values()))
            if needed > room:
                return packed
            packed |= new
            room -= needed
    return packed


def _pack_chunk(
    analysis: Analysis, chunk: Sequence[Sequence[Pick]], pieces: Mapping[str, Pieces], score: str
) -> dict[tuple[str, bytes], str]:
    by_run: dict[str, dict[bytes, Answered]] = {}
    for group in chunk:
        for name, sample in group:
            by_run.setdefault(name, {})[sample.stored.key] = sample
    packed = {}
    for name, samples in by_run.items():
        run = analysis.runs[name]
        scored = read_scores(run, samples, score) if run.written_by == "base" else {}
        for sample, table in run.read_traces(_TRACED, list(samples.values())):
            tokens = make_sample(sample.stored_name, table, _TRACED)
            packed[name, sample.stored.key] = pack(run, tokens, scored.get(sample.stored.key), score, pieces[name])
    return packed


def read_scores(run: RunReader, samples: Mapping[bytes, Answered], score: str) -> dict[bytes, SampleTokens]:
    """By key what `lm-eval-takeover score` found of these texts: `score` and both models' probabilities."""
    by_name = {sample.stored_name: key for key, sample in samples.items()}
    headers = {path: read_header(path) for path in list_score_files(run.folder)}
    files = [path for path, (header, keys) in headers.items() if score in header.scores and keys & samples.keys()]
    found = read_scored_samples(files, [score], ["base_logprob", "guide_logprob", "base_rank"])
    return {by_name[tokens.name]: tokens for tokens in found if tokens.name in by_name}


def pack(run: RunReader, tokens: SampleTokens, scored: SampleTokens | None, score: str, pieces: Pieces) -> str:
    """One rollout; `scored` is what was measured on it afterwards, by this score.

    It is base64 of a zlib stream, which a browser opens by itself (`DecompressionStream("deflate")`):

        u32               bytes of the header, little-endian
        header            JSON: `text`, a piece per token; `taken`, positions that the donor wrote; `same`, those of them where
                          the host would have written that, too; `host`, by position what it would have instead
        4 columns of u16  the low bytes of all tokens, then the high bytes, 65535 for unknown: score, and minus the
                          log-probability under host and donor, in thousandths of a nat (at most 65.534); rank under the host
    """
    columns = tokens.columns
    measured = [columns[name] for name in ("score", "host_logprob", "donor_logprob", "donor_rank")]
    if scored is not None:
        measured = [scored.columns[name] for name in (column_of(score), "base_logprob", "guide_logprob", "base_rank")]
    taken = np.flatnonzero(columns["chosen_from"] == run.donor) if run.written_by is None else np.empty(0, dtype=int)
    ids, hosts = columns["token_id"], columns["host_token_id"]
    replaced = {int(i): pieces.name(int(hosts[i])) for i in taken if hosts[i] >= 0 and hosts[i] != ids[i]}
    same = [int(i) for i in taken if hosts[i] == ids[i]]
    header = {"text": pieces.split(ids.tolist()), "taken": taken.tolist(), "host": replaced, "same": same}
    text = json.dumps(header, separators=(",", ":")).encode()
    values, host, donor, rank = measured
    planes = [*(_pack(nats, 1000) for nats in (values, -host, -donor)), _pack(np.where(rank < 0, np.nan, rank), 1)]
    return base64.b64encode(zlib.compress(struct.pack("<I", len(text)) + text + b"".join(planes), 9)).decode()


def _pack(values: NDArray[Any], scale: int) -> bytes:
    values = np.asarray(values, dtype=np.float64)
    rounded = np.round(np.nan_to_num(values * scale, posinf=UNKNOWN)).clip(0, UNKNOWN - 1)
    packed = np.where(np.isnan(values), UNKNOWN, rounded).astype("<u2").view(np.uint8).reshape(-1, 2)
    return packed.T.tobytes()
