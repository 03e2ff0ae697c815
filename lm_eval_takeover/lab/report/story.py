"""What the page says first, each with one panel: did it work, how much did the guide write and where, which words, what changed.

Everything is of the compared run, and of the score that its gate reads.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
from markupsafe import Markup

from lm_eval_takeover.lab.analysis.figures import SIZE, draw, draw_places
from lm_eval_takeover.lab.analysis.pooling import MEAN
from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.report.figures import clean_figure
from lm_eval_takeover.lab.report.inputs import Analysis
from lm_eval_takeover.pair.pieces import Pieces
from lm_eval_takeover.runs.run_reader import Answered, RunReader
from lm_eval_takeover.storage.regular_files import read_bounded

_WORDS, _ANSWERS = 10, 3  # that are shown
_LONGEST, _LAST = 1_500, 400  # characters of an answer: its beginning, and its end
_LONGEST_TOKEN = 60  # characters
_TRACED = ("token_id", "chosen_from", "host_token_id")

Word = tuple[str, str, int]  # what the host would have written, what the donor wrote, how often
Piece = tuple[str, str | None]  # text; of a takeover what the host would have written


@dataclass(frozen=True)
class Takeovers:
    """Where a run's takeovers stand in their answers, from 0 to 1, and the most frequent ones that changed a token.

    `changed` is how many did; None if the host was not asked.
    """

    places: list[float]
    words: list[Word]
    changed: int | None


@dataclass(frozen=True)
class SideBySide:
    """One problem with the answers of base and compared run, by the run's name: verdict and pieces."""

    problem: str
    answers: dict[str, tuple[str, list[Piece]]]


@dataclass(frozen=True)
class Story:
    """Sentences and panels of the compared run; `panels` by their part of the page, each with its figure's name."""

    run: str
    sentences: Mapping[str, str]
    panels: Mapping[str, list[tuple[str, Markup]]]
    words: Sequence[Word]
    examples: Sequence[SideBySide]


def tell_story(
    analysis: Analysis, pieces: Mapping[str, Pieces], groups: Sequence[Sequence[tuple[str, Answered]]]
) -> Story | None:
    """None where no run has takeovers."""
    name = analysis.compared
    if name is None or (run := analysis.runs[name]).written_by is not None:
        return None
    score = run.takeover.get("score")
    found = read_takeovers(run, pieces[name])
    rows = {table: _read_rows(analysis, table) for table in ("budget", "rates", "planning", "flips")}
    places = _clean("places", lambda figure: draw_places(figure, found.places)) if found.places else None
    panels = {
        "good": {"budget": _draw("budget", rows["budget"])},
        "where": {"rates": _draw("rates", rows["rates"], run=name), "places": places},
        "words": {"planning": _draw("planning", rows["planning"], score=score)},
        "changed": {"flips": _draw("flips", rows["flips"])},
    }
    # Those of the mean over tasks, or of the one task.
    budget, flips = ([row for row in rows[table] if row["task"] == MEAN] or rows[table] for table in ("budget", "flips"))
    sentences = {
        "good": _tell_accuracy(analysis, name, {row["run"]: row for row in budget}),
        "where": _tell_places(found),
        "changed": _tell_flips(next((row for row in flips if row["run"] == name), None), analysis.base),
    }
    kept = {part: [(name, figure) for name, figure in of.items() if figure] for part, of in panels.items()}
    examples = [_put_side_by_side(analysis, pieces, dict(group)) for group in groups[:_ANSWERS]]
    return Story(name, sentences, kept, found.words, [one for one in examples if len(one.answers) > 1])


def read_takeovers(run: RunReader, pieces: Pieces) -> Takeovers:
    """Read all traces of a run."""
    places, words = list[float](), Counter[tuple[int | None, int]]()
    for _, table in run.read_traces(_TRACED):
        ids, writers, hosts = (table[name].to_pylist() for name in _TRACED)
        taken = [place for place, writer in enumerate(writers) if writer == run.donor]
        places += [place / len(ids) for place in taken]
        words.update((hosts[place], ids[place]) for place in taken if hosts[place] != ids[place])
    named = [(_name(pieces, host), _name(pieces, token), n) for (host, token), n in words.most_common(_WORDS)]
    return Takeovers(places, named, None if any(host is None for host, _ in words) else words.total())


def _name(pieces: Pieces, token: int | None) -> str:
    return "" if token is None else pieces.name(token).replace("\n", "⏎")[:_LONGEST_TOKEN]


def _read_rows(analysis: Analysis, name: str) -> list[dict[str, Any]]:
    """All rows of an analysis; empty where it is not there."""
    if name not in analysis.names:
        return []
    rows: list[dict[str, Any]] = json.loads(read_bounded(analysis.folder / f"{name}.json"))
    return rows


def _draw(name: str, rows: Sequence[dict[str, Any]], **only: Any) -> Markup | None:
    """A figure of an analysis from its rows with these values; None where there are none."""
    wanted = {column: value for column, value in only.items() if value is not None}
    kept = [row for row in rows if all(row[column] == value for column, value in wanted.items())]
    return _clean(name, lambda figure: draw(name, pl.DataFrame(kept, infer_schema_length=None), figure)) if kept else None


def _clean(name: str, draw_it: Callable[[Any], None]) -> Markup:
    return clean_figure(draw_svg(draw_it, SIZE).encode(), f"story-{name}", name)


def _tell_accuracy(analysis: Analysis, name: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """`guided: the guide wrote 5.0% of the tokens. Acc 100.0%; base 13.8%, guide 100.0%, random 16.2%.`"""
    run = analysis.runs[name]
    if name not in rows:
        return ""
    shares = [f"{other} {row['acc']:.1%}" for other, row in rows.items() if other != name and row["acc"] is not None]
    own = rows[name]["acc"]
    wrote = f"{name}: the {run.donor} wrote {rows[name]['realized_rate']:.1%} of the tokens."
    return wrote if own is None else f"{wrote} {own:.1%} of its answers are correct{'; ' * bool(shares)}{', '.join(shares)}."


def _tell_places(found: Takeovers) -> str:
    if not (count := len(found.places)):
        return "No token was taken over."
    early = sum(place < 0.25 for place in found.places) / count
    changed = "" if found.changed is None else f"{found.changed:,} of them changed the token, "
    return f"{count:,} takeovers: {changed}{early:.0%} stand in the first quarter of an answer."


def _tell_flips(row: Mapping[str, Any] | None, base: str | None) -> str:
    if row is None:
        return ""
    solved = f"Of {row['problems']} problems it solves {row['rescued']} that {base} does not, and fails {row['harmed']} that"
    return (
        f"{solved} {base} solves (sign test: p = {row['p_value']:.2g}). A problem is solved if one of its answers is correct."
    )


def _put_side_by_side(analysis: Analysis, pieces: Mapping[str, Pieces], group: Mapping[str, Answered]) -> SideBySide:
    shown = [name for name in (analysis.base, analysis.compared) if name in group]
    answers = {str(name): _mark(analysis.runs[str(name)], pieces[str(name)], group[str(name)]) for name in shown}
    name, sample = next(iter(group.items()))
    problem = analysis.runs[name].find_prompt(sample)["problem"] or f"document {sample.doc_id}"
    return SideBySide(problem[:_LONGEST], answers)


def _mark(run: RunReader, pieces: Pieces, sample: Answered) -> tuple[str, list[Piece]]:
    """Verdict and pieces of an answer; a long one without its middle."""
    verdict = "not judged" if sample.outcome is None else "correct" if sample.correct else "wrong"
    marked: list[Piece] = []
    for _, table in run.read_traces(_TRACED, [sample]):
        ids, writers, hosts = (table[name].to_pylist() for name in _TRACED)
        taken = [run.written_by is None and writer == run.donor for writer in writers]
        names = [_name(pieces, host) for host in hosts]
        marked = [
            (text, name if is_taken else None) for text, name, is_taken in zip(pieces.split(ids), names, taken, strict=True)
        ]
    return verdict, _cut_middle(marked)


def _cut_middle(marked: list[Piece]) -> list[Piece]:
    total, at, before, behind = sum(len(text) for text, _ in marked), 0, list[Piece](), list[Piece]()
    for text, host in marked:
        piece = text[:_LONGEST], host
        if at < _LONGEST:
            before.append(piece)
        elif at >= total - _LAST:
            behind.append(piece)
        at += len(text)
    left_out = len(marked) - len(before) - len(behind)
    return [*before, *([(f" … {left_out:,} tokens … ", None)] if left_out else []), *behind]
