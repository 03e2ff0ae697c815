"""What the page says first, each with one panel: did it work, how much did the guide write and where, which words, what changed.

Everything is of the compared run, and of the score that its gate reads.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
from markupsafe import Markup

from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures.figures import SIZE, draw, draw_places
from lm_eval_takeover.lab.measures.pooling import MEAN
from lm_eval_takeover.lab.report.inputs import Analysis, clean_figure
from lm_eval_takeover.pair.vocabulary import Pieces
from lm_eval_takeover.results.summary import Summary
from lm_eval_takeover.runs.run_reader import Answered, RunReader
from lm_eval_takeover.storage.files import read_bounded

_WORDS, _ANSWERS = 10, 3  # that are shown
_LONGEST, _LAST = 1_500, 400  # characters of an answer: its beginning, and its end
_LONGEST_TOKEN = 60  # characters
_TRACED = ("token_id", "chosen_from", "host_token_id")

Words = Counter[tuple[int | None, int]]  # what the host would have written, None if it was not asked; what the donor wrote
Piece = tuple[str, str | None]  # text; of a takeover what the host would have written


def tell_story(
    analysis: Analysis, pieces: Mapping[str, Pieces], groups: Sequence[Sequence[tuple[str, Answered]]]
) -> dict[str, Any] | None:
    """What the page reads of the compared run; None where no run has takeovers.

    `sentences` and `panels` are by part of the page, panels with the names of their figures; `words` are the most frequent
    takeovers that changed a token; `examples` are problems with the answers of base and compared run.
    """
    name = analysis.compared
    if name is None or (run := analysis.runs[name]).written_by is not None:
        return None
    score = run.takeover.get("score")
    places, words = _read_takeovers(run)
    named = [(_name(pieces[name], host), _name(pieces[name], token), n) for (host, token), n in words.most_common(_WORDS)]
    rows: dict[str, list[dict[str, Any]]] = {
        table: json.loads(read_bounded(analysis.folder / f"{table}.json")) if table in analysis.names else []
        for table in ("rates", "planning", "flips")
    }
    has_planning = any(row["in_base"] for row in rows["planning"] if row["class"] == "planning")
    panels = {
        "where": {
            "rates": _draw("rates", rows["rates"], run=name),
            "places": _clean("places", lambda figure: draw_places(figure, places)) if places else None,
        },
        "words": {"planning": _draw("planning", rows["planning"] if has_planning else [], score=score)},
        "changed": {"flips": _draw("flips", rows["flips"])},
    }
    # Those of the mean over tasks, or of the one task.
    flips = [row for row in rows["flips"] if row["task"] == MEAN] or rows["flips"]
    examples = [_put_side_by_side(analysis, pieces, dict(group)) for group in groups[:_ANSWERS]]
    return {
        "run": name,
        "sentences": {
            "where": _tell_places(places, words),
            "changed": _tell_flips(next((row for row in flips if row["run"] == name), None), analysis.base),
        },
        "panels": {part: [(table, figure) for table, figure in of.items() if figure] for part, of in panels.items()},
        "words": named,
        "examples": [one for one in examples if len(one["answers"]) > 1],
    }


def _read_takeovers(run: RunReader) -> tuple[list[float], Words]:
    """Where all takeovers stand in their answers, from 0 to 1, and how often each changed a token."""
    places, words = list[float](), Words()
    for _, table in run.read_traces(_TRACED):
        ids, writers, hosts = (table[name].to_pylist() for name in _TRACED)
        taken = [place for place, writer in enumerate(writers) if writer == run.donor]
        places += [place / len(ids) for place in taken]
        words.update((hosts[place], ids[place]) for place in taken if hosts[place] != ids[place])
    return places, words


def _name(pieces: Pieces, token: int | None) -> str:
    return "" if token is None else pieces.name(token).replace("\n", "⏎")[:_LONGEST_TOKEN]


def _draw(name: str, rows: Sequence[dict[str, Any]], **only: Any) -> Markup | None:
    """A figure of an analysis from its rows with these values; None where there are none."""
    wanted = {column: value for column, value in only.items() if value is not None}
    kept = [row for row in rows if all(row[column] == value for column, value in wanted.items())]
    return _clean(name, lambda figure: draw(name, pl.DataFrame(kept, infer_schema_length=None), figure)) if kept else None


def _clean(name: str, draw_it: Callable[[Any], None]) -> Markup:
    return clean_figure(draw_svg(draw_it, SIZE).encode(), f"story-{name}", name)


def tell_accuracy(analysis: Analysis, rows: Mapping[str, Summary]) -> str:
    """`guided: the guide wrote 5.0% of the tokens. Acc 100.0%; base 13.8%, guide 100.0%, random 16.2%.`"""
    name = analysis.compared
    if name is None or name not in rows or (run := analysis.runs[name]).written_by is not None:
        return ""
    shares = [f"{other} {row.acc.value:.1%}" for other, row in rows.items() if other != name and row.acc.value is not None]
    own = rows[name].acc.value
    wrote = f"{name}: the {run.donor} wrote {rows[name].rates.realized_rate or 0.0:.1%} of the tokens."
    return wrote if own is None else f"{wrote} {own:.1%} of its answers are correct{'; ' * bool(shares)}{', '.join(shares)}."


def _tell_places(places: Sequence[float], words: Words) -> str:
    if not places:
        return "No token was taken over."
    early = sum(place < 0.25 for place in places) / len(places)
    changed = "" if any(host is None for host, _ in words) else f"{words.total():,} of them changed the token, "
    return f"{len(places):,} takeovers: {changed}{early:.0%} stand in the first quarter of an answer."


def _tell_flips(row: Mapping[str, Any] | None, base: str | None) -> str:
    if row is None:
        return ""
    solved = f"Of {row['problems']} problems it solves {row['rescued']} that {base} does not, and fails {row['harmed']} that"
    return (
        f"{solved} {base} solves (sign test: p = {row['p_value']:.2g}). A problem is solved if one of its answers is correct."
    )


def _put_side_by_side(analysis: Analysis, pieces: Mapping[str, Pieces], group: Mapping[str, Answered]) -> dict[str, Any]:
    """A problem with the answers of base and compared run, by the run's name: verdict and pieces."""
    shown = [str(name) for name in (analysis.base, analysis.compared) if name in group]
    name, sample = next(iter(group.items()))
    problem = analysis.runs[name].find_prompt(sample)["problem"] or f"document {sample.doc_id}"
    answers = {name: _mark(analysis.runs[name], pieces[name], group[name]) for name in shown}
    return {"problem": problem[:_LONGEST], "answers": answers}


def _mark(run: RunReader, pieces: Pieces, sample: Answered) -> tuple[str, list[Piece]]:
    """Verdict and pieces of an answer; a long one without its middle."""
    verdict = "not judged" if sample.outcome is None else "correct" if sample.correct else "wrong"
    ((_, table),) = run.read_traces(_TRACED, [sample])
    ids, writers, hosts = (table[name].to_pylist() for name in _TRACED)
    taken = [run.written_by is None and writer == run.donor for writer in writers]
    names = [_name(pieces, host) if is_taken else None for host, is_taken in zip(hosts, taken, strict=True)]
    marked = list(zip(pieces.split(ids), names, strict=True))
    total, at, before, behind = sum(len(text) for text, _ in marked), 0, list[Piece](), list[Piece]()
    for text, host in marked:
        piece = text[:_LONGEST], host
        if at < _LONGEST:
            before.append(piece)
        elif at >= total - _LAST:
            behind.append(piece)
        at += len(text)
    left_out = len(marked) - len(before) - len(behind)
    return verdict, [*before, *([(f" … {left_out:,} tokens … ", None)] if left_out else []), *behind]
