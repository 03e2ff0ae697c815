"""What the page says first of the compared run: how much did the guide write and where, which words, what did it change."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from lm_eval_takeover.lab.extra import draw_svg
from lm_eval_takeover.lab.measures.figures import SIZE, draw_places
from lm_eval_takeover.lab.measures.pooling import MEAN
from lm_eval_takeover.lab.report.inputs import Analysis, clean_figure
from lm_eval_takeover.pair.vocabulary import Pieces
from lm_eval_takeover.results.documents import Fields
from lm_eval_takeover.runs.run_reader import RunReader

_WORDS = 10  # that are shown
_LONGEST_TOKEN = 60  # characters
_TRACED = ("token_id", "chosen_from", "host_token_id")

WordCounts = Counter[tuple[int, int]]  # what the host would have written, -1 if it was not asked; what the donor wrote


def tell_story(analysis: Analysis, pieces: Mapping[str, Pieces]) -> dict[str, Any] | None:
    """What the page says of the compared run; None where no run has takeovers."""
    name = analysis.compared
    if name is None or (run := analysis.runs[name]).written_by is not None:
        return None
    places, words = _read_takeovers(run)
    named = [(_name(pieces[name], host), _name(pieces[name], token), n) for (host, token), n in words.most_common(_WORDS)]
    flips = [row for row in analysis.read_table("flips") if row.get("run") == name]
    flipped = next((row for row in flips if row.get("task") == MEAN), next(iter(flips), None))
    picture = draw_svg(partial(draw_places, places=places), SIZE) if places else None
    return {
        "run": name,
        "donor": run.donor,
        "where": _tell_places(places, words),
        "picture": picture and clean_figure(picture.encode(), "places", "places"),
        "words": named,  # the most frequent takeovers that changed a token
        "changed": _tell_flips(flipped, analysis.base),
    }


def _read_takeovers(run: RunReader) -> tuple[list[float], WordCounts]:
    """Where all takeovers stand in their answers, from 0 to 1, and how often each changed a token."""
    places, words = list[float](), WordCounts()
    for _, found in run.read_traces(_TRACED):
        ids, writers, hosts = (found[name].tolist() for name in _TRACED)
        taken = [place for place, writer in enumerate(writers) if writer == run.donor]
        places += [place / len(ids) for place in taken]
        words.update((hosts[place], ids[place]) for place in taken if hosts[place] != ids[place])
    return places, words


def _name(pieces: Pieces, token: int) -> str:
    """With spaces that nothing else would show."""
    name = "" if token < 0 else pieces.name(token).replace("\n", "⏎")[:_LONGEST_TOKEN]
    return name if name.strip() else name.replace(" ", "␣")


def tell_accuracy(analysis: Analysis, rows: Mapping[str, Any]) -> str:
    """`guided: the guide wrote 5.0% of the tokens. Acc 100.0%; base 13.8%, guide 100.0%, random 16.2%.`"""
    name = analysis.compared
    if name is None or name not in rows or (run := analysis.runs[name]).written_by is not None:
        return ""
    own, *others = (f"{row.scores['Acc'].value or 0.0:.1%}" for row in (rows[name], *rows.values()))
    beside = ", ".join(f"{other} {share}" for other, share in zip(rows, others, strict=True) if other != name)
    wrote = f"{name}: the {run.donor} wrote {rows[name].rate:.1%} of the tokens."
    return f"{wrote} {own} of its answers are correct{beside and '; '}{beside}."


def _tell_places(places: Sequence[float], words: WordCounts) -> str:
    if not places:
        return "No token was taken over."
    early = sum(place < 0.25 for place in places) / len(places)
    changed = "" if any(host < 0 for host, _ in words) else f"{words.total():,} of them changed the token, "
    return f"{len(places):,} takeovers: {changed}{early:.0%} stand in the first quarter of an answer."


def _tell_flips(row: Fields | None, base: str | None) -> str:
    if row is None:
        return ""
    problems, rescued, harmed = (row.require(name, int) for name in ("problems", "rescued", "harmed"))
    solved = f"Of {problems} problems it solves {rescued} that {base} does not, and fails {harmed} that {base} solves"
    return (
        f"{solved} (sign test: p = {row.require('p_value', float):.2g}). A problem is solved if one of its answers is correct."
    )
