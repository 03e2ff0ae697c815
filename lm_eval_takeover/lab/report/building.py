"""Renders the page: tables, figures, data and rollouts in a template, under a content security policy.

Its figures are those of `budget` in the analysis; Recovery is that of `compare`, where the runs are its rows.
"""

import argparse
import base64
import json
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from lm_eval_takeover import __version__
from lm_eval_takeover.commands._output import write_file
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.escaping import for_terminal, make_page_policy
from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures.figures import DRAWN, SIZE, draw_overview
from lm_eval_takeover.lab.measures.pooling import MEAN
from lm_eval_takeover.lab.report.inputs import CAPTIONS, Analysis, clean_figure, find_analysis, read_effects, read_figure
from lm_eval_takeover.lab.report.story import tell_accuracy, tell_story
from lm_eval_takeover.pair.vocabulary import Pieces
from lm_eval_takeover.results.documents import Fields
from lm_eval_takeover.results.summary import Figure, name_passed
from lm_eval_takeover.runs.evidence import Columns, column_of
from lm_eval_takeover.runs.identity import find_missed_rate
from lm_eval_takeover.runs.run_reader import Answered, RunReader

MAX_PROBLEM, MAX_ANSWER = 20_000, 2_000  # characters that are shown of one
MISSING = "–"
_BLOCK = len('<script type="text/plain" data-rollout="00000"></script>\n')
_PAGE = files("lm_eval_takeover.lab.report") / "page"


def build(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises ArgumentError for what cannot be read or written, or does not fit."""
    analysis = Analysis.read(find_analysis(options.analysis, options.tokenizer))
    groups = list_picks(analysis)
    effects = read_effects(options.effects) if options.effects else None
    pieces = _load_pieces(analysis, options.tokenizer)
    render = prepare(analysis, effects, tell_story(analysis, pieces))
    page = render(index=make_index(analysis, ()), blocks=[], total=0)
    limit = int(options.max_size * 1e6)
    total = len({(name, sample.stored.key) for group in groups for name, sample in group})
    # The index gains a number for each rollout that is embedded, and each has a block of its own.
    room = limit - len(page.encode()) - total * (_BLOCK + 6)
    if room < 0:
        raise ArgumentError(
            f"--max_size {options.max_size}: the page needs {(limit - room) / 1e6:.1f} MB before any answer is in it; allow more"
        )
    packed = pack_picks(analysis, groups, pieces, choose_score(analysis), room)
    page = render(index=make_index(analysis, packed), blocks=list(packed.values()), total=total)
    write_file("out", options.out, page)
    print(f"{len(packed):,} of {total:,} answers, {options.out.stat().st_size / 1e6:.1f} MB -> {options.out}")
    return 0


def choose_score(analysis: Analysis) -> str:
    """By which base rollouts are tinted: as the compared run's gate decides."""
    run = analysis.runs.get(analysis.compared or "")
    return str((run.takeover.get("score") if run else None) or "ce")


def _load_pieces(analysis: Analysis, tokenizer: str | None) -> dict[str, Pieces]:
    """By run; one for runs that name one tokenizer."""
    keys = {name: run.tokenizer_source for name, run in analysis.runs.items()}
    readers = {keys[name]: run for name, run in analysis.runs.items()}
    loaded = {key: Pieces(run.load_tokenizer(tokenizer)) for key, run in readers.items()}
    return {name: loaded[key] for name, key in keys.items()}


def make_index(analysis: Analysis, packed: Collection[tuple[str, bytes]]) -> dict[str, Any]:
    """The page's data on all samples; those that are embedded by run and key, in the order of their blocks."""
    names, places = list(analysis.runs), {key: place for place, key in enumerate(packed)}
    outcomes: dict[str | None, int] = {}
    problems = []
    for key in analysis.problems:
        asked = {name: analysis.samples[name].get(key, []) for name in names}
        prompt = next(analysis.runs[name].find_prompt(samples[0]) for name, samples in asked.items() if samples)
        texts = {"problem": _clip(prompt["problem"], MAX_PROBLEM), "gold": _clip(prompt["answer"], MAX_ANSWER)}
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


def prepare(analysis: Analysis, effects: Mapping[str, Any] | None, story: Mapping[str, Any] | None) -> Callable[..., str]:
    """What renders the page, given its `index`, its `blocks` and how many answers there are in `total`."""
    style, script = _read("report.css"), _read("report.js")
    temml = f"/*! {_read('temml.LICENSE')}*/\n{_read('temml.min.js')}"
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = for_terminal
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    reasons: dict[str, list[str]] = {}
    for name, reason in analysis.cannot_show.items():
        reasons.setdefault(reason, []).append(name)
    rows = list_rows(analysis)
    head = [row for row in rows if row.task == rows[0].task]
    overview = draw_svg(partial(draw_overview, rows={row.run: row.scores for row in head}), SIZE)
    # The frontier of the comparison that the runs are rows of, then the figures of the analysis.
    figures = analysis.find_kept("frontier.svg")
    figures += [analysis.folder / f"{name}.svg" for name in analysis.names if name in DRAWN and name in CAPTIONS]
    return partial(
        environment.from_string(_read("report.html.jinja")).render,
        version=__version__,
        policy=make_page_policy([temml, script], style),
        style=Markup(style),
        scripts=[Markup(temml), Markup(script)],
        runs=[_describe_run(name, run) for name, run in analysis.runs.items()],
        columns=list_columns(analysis, head),
        rows=head,
        other_rows=rows[len(head) :],
        overview=clean_figure(overview.encode(), "overview", "overview"),
        costs=[tell_costs(analysis), *(line for board in analysis.boards for line in board.require("warnings", list[str]))],
        lead=tell_accuracy(analysis, {row.run: row for row in head}),
        figures=[(path.stem, CAPTIONS[path.stem], read_figure(path)) for path in figures],
        effects=effects,
        story=story,
        captions=CAPTIONS,
        reasons={", ".join(names): reason for reason, names in reasons.items()},
    )


def _read(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class PageRow:
    """A run on a task, or on the mean over tasks: its Acc and Pass@k, and all cells of its line."""

    task: str
    run: str
    scores: Mapping[str, Figure]
    rate: float
    cells: list[str]


def list_rows(analysis: Analysis) -> list[PageRow]:
    """Those of the mean over tasks first, where there are several. Its rate is that of all tokens together."""
    lines, board = analysis.read_table("budget"), analysis.board
    named = [(line.require("task", str), line.require("run", str), line) for line in lines]
    tasks = sorted({task for task, *_ in named if task != MEAN})
    shown = [*([MEAN] if len(tasks) > 1 else []), *tasks]
    passed, rows = name_passed(line.require("k", int | None, None) for *_, line in named), []
    for task, name, line in sorted((of for of in named if of[0] in shown), key=lambda of: shown.index(of[0])):
        run, k = analysis.runs[name], line.require("k", int | None, None)
        samples = [one.stored for one in run.answered if task in (MEAN, one.task)]
        rate = sum(one.takeovers for one in samples) / max(sum(one.tokens for one in samples), 1)
        scores = {"Acc": _pick(line, "acc"), passed: _pick(line, "pass8")}
        recovery = board[name].inside_or_empty("recovery") if name in board and task == shown[0] else None  # of the average
        figures = (Figure() if recovery is None else _pick(recovery, metric) for metric in ("acc", f"pass{k}"))
        recoveries = [_show(figure, "z.0%") for figure in figures] if board else []
        mark = "" if find_missed_rate(run.takeover, rate) is None else " †"
        acc, solved = (_show(figure, ".1%") for figure in scores.values())
        own = f"k = {k}: " if k and passed == "Pass@k" else ""
        cells = [acc, own + solved, *recoveries, f"{rate:.1%}{mark}"]
        rows.append(PageRow(task, name, scores, rate, cells))
    return rows


def _pick(line: Fields, name: str) -> Figure:
    return Figure(*(line.require(field, float | None, None) for field in (name, f"{name}_low", f"{name}_high")))


def _show(figure: Figure, form: str) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return MISSING
    return f"{figure.value:{form}}\n[{figure.low:{form}}, {figure.high:{form}}]"


def list_columns(analysis: Analysis, head: Sequence[PageRow]) -> list[tuple[str, str]]:
    passed = [*head[0].scores][1] if head else ""
    named = (row.require("reference", str | None, None) for row in analysis.board.values())
    reference = next(filter(None, named), "the guide")
    recovery = [
        (f"Recovery against {reference}, Acc", f"(run - base) / ({reference} - base), with Fieller's 95 % interval"),
        (f"Recovery against {reference}, {passed}", f"the same for {passed}"),
    ]
    return [
        ("Acc", "mean over samples, with its 95 % interval over problems"),
        (passed, "problems that any of so many samples solves, with its 95 % interval"),
        *(recovery if analysis.board else []),
        ("Realized rate", "share of tokens taken over; † off the rate that was asked for"),
    ]


def tell_costs(analysis: Analysis) -> str:
    """`Guide passes per token: base 0.00, guided 0.29. Tokens per second: base 1,204, guided 811.`"""
    facts: dict[str, list[str]] = {"Guide passes per token": [], "Tokens per second": [], "Cut off by the token limit": []}
    for name, run in analysis.runs.items():
        samples = [one.stored for one in run.stored_samples()]
        tokens, cut = sum(one.tokens for one in samples), sum(one.truncated for one in samples)
        passes, speed, limited = facts.values()
        passes.append(f"{name} {sum(one.guide_passes for one in samples) / max(tokens, 1):.2f}")
        speed += [f"{name} {tokens / run.seconds:,.0f}"] if run.seconds else []
        limited += [f"{name} {cut / len(samples):.1%}"] if cut else []
    return " ".join(f"{what}: {', '.join(of)}." for what, of in facts.items() if of)


_MOST = 1e6  # of a number that is shown: JSON has no infinity
_TRACED = ("token_id", "chosen_from", "score", "host_logprob", "donor_logprob", "donor_rank", "host_token_id")
_CHUNK = 128  # groups that are packed before it is seen whether there is room for more

Pick = tuple[str, Answered]  # run, sample


def list_picks(analysis: Analysis) -> list[list[Pick]]:
    """Groups of samples to embed, the most telling first: one sample of one problem in all runs.

    Problems come first whose samples the compared run has right more often than the base, or less. A problem's next sample comes
    after every other problem had as many; of a problem, samples that base and compared run judge differently come first.
    """
    beside, ranked = (analysis.base, analysis.compared), list[tuple[int, list[Pick]]]()
    by_run = [analysis.samples.get(name or "", {}) for name in beside]
    right = [{key: sum(one.correct for one in samples) for key, samples in problems.items()} for problems in by_run]
    changes = {key: abs(right[1][key] - right[0][key]) for key in right[0].keys() & right[1].keys()}
    for key in sorted(analysis.problems, key=lambda key: -changes.get(key, 0)):
        by_number: dict[int, dict[str, Answered]] = {}
        for name, problems in analysis.samples.items():
            for sample in problems.get(key, []):
                by_number.setdefault(sample.sample, {})[name] = sample
        verdicts = {n: {one.correct for name, one in by_number[n].items() if name in beside} for n in by_number}
        numbers = sorted(by_number, key=lambda n: (len(verdicts[n]) < 2, n))  # what changed is first
        ranked += enumerate(list(by_number[number].items()) for number in numbers)
    return [group for _, group in sorted(ranked, key=lambda pair: pair[0])]


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
        scored = read_scores(run, samples.values(), score) if run.written_by == "base" else {}
        for sample, columns in run.read_traces(_TRACED, list(samples.values())):
            packed[name, sample.stored.key] = pack(run, columns, scored.get(sample.stored.key), score, pieces[name])
    return packed


def read_scores(run: RunReader, samples: Iterable[Answered], score: str) -> dict[bytes, Columns]:
    """By key what `lm-eval-takeover score` found of these texts: `score` and both models' probabilities."""
    found = run.read_scores([column_of(score), "base_logprob", "guide_logprob", "base_rank"], samples)
    return {key: columns for key, header, columns in found if score in header.scores}


def pack(run: RunReader, columns: Columns, scored: Columns | None, score: str, pieces: Pieces) -> str:
    """One rollout, base64 of zlib of JSON, which a browser opens by itself; `scored` is what was measured on it afterwards.

    `text` has a piece per token, `taken` the positions that the donor wrote, `same` those of them where the host would have
    written that, too, `host` by position what it would have instead. Score, log-probabilities under host and donor (nats), and
    rank under the host are by token, null where they are not known.
    """
    measured = [columns[name] for name in ("score", "host_logprob", "donor_logprob", "donor_rank")]
    if scored is not None:
        measured = [scored[name] for name in (column_of(score), "base_logprob", "guide_logprob", "base_rank")]
    taken = np.flatnonzero(columns["chosen_from"] == run.donor) if run.written_by is None else np.empty(0, dtype=int)
    ids, hosts = columns["token_id"], columns["host_token_id"]
    replaced = {int(i): pieces.name(int(hosts[i])) for i in taken if hosts[i] >= 0 and hosts[i] != ids[i]}
    same = [int(i) for i in taken if hosts[i] == ids[i]]
    packed: dict[str, Any] = {"text": pieces.split(ids.tolist()), "taken": taken.tolist(), "host": replaced, "same": same}
    for name, values in zip(("score", "host_logprob", "donor_logprob", "rank"), measured, strict=True):
        rounded = np.round(np.asarray(values, np.float64).clip(-_MOST, _MOST), 3).tolist()
        packed[name] = [None if math.isnan(value) or (name == "rank" and value < 0) else value for value in rounded]
    return base64.b64encode(zlib.compress(json.dumps(packed, separators=(",", ":")).encode(), 9)).decode()
