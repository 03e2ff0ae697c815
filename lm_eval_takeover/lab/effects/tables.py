"""Output of `effects`: the cost before it runs, then tables, figures and the continued texts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lm_eval_takeover.commands._output import Table, write_terminal, writing
from lm_eval_takeover.lab.analyze.tables import write_analysis
from lm_eval_takeover.lab.measures import effects
from lm_eval_takeover.runs.run_reader import RunReader
from lm_eval_takeover.storage.files import write_text, write_whole

EXAMPLES = "effect_examples.json"  # what a report shows
TEXTS = "effect_texts.parquet"
_MOST = 10  # examples of either sign
_CONTEXT, _BEHIND = 400, 1500  # characters before and behind a position that are shown
_INNER = ("problem", "host", "donor")  # of a row, not of the table
_NAME = ("task", "doc_id", "sample", "position")
Row = Mapping[str, Any]


def write_effects(
    folder: Path, run: RunReader, tokenizer: Any, rows: Sequence[Row], signals: Sequence[str], after: str, *, exact: bool
) -> None:
    """Tables, figures and texts into the folder, and the summary to the terminal.

    `rows` of one kind stand together; `signals` are the columns to hold effects against.
    """
    positions = pl.DataFrame([{name: row[name] for name in row if name not in ("begun", "texts")} for row in rows])
    positions = effects.add_shrunk(positions, exact=exact)
    columns = list(positions.drop(_INNER).columns)
    columns.insert(columns.index("high") + 1, columns.pop())
    tables = {
        "effects": positions.select(columns),
        "effect_by_score": effects.tabulate_by_score(positions, signals),
        "effect_summary": effects.tabulate_summary(positions, exact=exact),
        "effect_auroc": effects.tabulate_auroc(positions, signals, exact=exact),
    }
    for name, table in tables.items():
        write_analysis(folder, name, table)
    examples = [_describe_example(row, tokenizer) for row in _choose_examples(rows, positions["shrunk"].to_list())]
    content = {"run": run.label, "after": after, "positions": examples}
    with writing("out", folder):
        write_text(folder / EXAMPLES, json.dumps(content, indent=1) + "\n")
        texts = pl.DataFrame([text for row in rows for text in _list_texts(row)])
        write_whole(folder / TEXTS, lambda stream: texts.write_parquet(stream))
    print(_show_summary(tables["effect_summary"], after))
    print(_show_auroc(tables["effect_auroc"]))
    print(f"{', '.join(tables)} -> {folder}")


def _list_texts(row: Row) -> Iterator[dict[str, Any]]:
    """The continuations of both tokens of a position: ids from the forced token on."""
    for writer, texts in row["texts"].items():
        for place, (text, correct) in enumerate(zip(texts, row[writer], strict=True)):
            facts = {"writer": writer, "continuation": place, "correct": correct, "truncated": text.response.truncated}
            yield {name: row[name] for name in _NAME} | facts | {"token_ids": text.tokens}


def _choose_examples(rows: Sequence[Row], shrunk: Sequence[float]) -> list[Row]:
    """The takeovers of the largest effects of either sign, less what is noise; of equal ones the first."""
    takeovers = [(value, row) for value, row in zip(shrunk, rows, strict=True) if row["kind"] == effects.TAKEOVER]
    ordered = sorted(takeovers, key=lambda pair: -pair[0])
    helpful = [row for value, row in ordered if value > 0 and row["effect"] > 0][:_MOST]
    return helpful + [row for value, row in ordered[::-1] if value < 0 and row["effect"] < 0][:_MOST]


def _describe_example(row: Row, tokenizer: Any) -> dict[str, Any]:
    """The text before a position, its two tokens, and the continuations of each."""
    before = tokenizer.decode(row["begun"])
    described = {name: row[name] for name in (*_NAME, "score", "effect", "low", "high")}
    described |= {"before": before[-_CONTEXT:], "clipped": len(before) > _CONTEXT}
    for role, texts in row["texts"].items():
        behind = [
            {"text": text.response[len(before) :][:_BEHIND], "correct": correct}
            for text, correct in zip(texts, row[role], strict=True)
        ]
        described[role] = {"token": tokenizer.decode([row[f"{role}_token_id"]]), "behind": behind}
    return described


def _show_summary(table: pl.DataFrame, after: str) -> str:
    alone = table["task"].n_unique() == 2  # one task, and all
    rows = [
        [
            row["kind"] if row["task"] == effects.ALL else f"{row['kind']}, {row['task']}",
            f"{row['population']:,.0f}",
            str(row["positions"]),
            _tell(row["effect"], row["low"], row["high"], "+.1f", 100),
            *(_tell(row[name], row[f"{name}_low"], row[f"{name}_high"], ".0%") for name in ("helpful", "harmful")),
            "" if row["share_for_80"] is None else f"{row['share_for_80']:.0%}",
        ]
        for row in table.iter_rows(named=True)
        if row["task"] == effects.ALL or not alone
    ]
    notes = [
        f"Effect: correct continuations with the donor's token minus with the host's, in points. "
        f"After the token, {'the default writer goes on alone' if after == 'base' else 'the run goes on with its gate'}.",
        f"Helpful, harmful: share of positions with an effect beyond {100 * effects.LARGE:.0f} points, less the noise of "
        f"continuations. 80 % of gain: the share of positions that brings it. In brackets 95 % intervals over problems.",
    ]
    headings = ["Positions", "There are", "Asked", "Effect", "Helpful", "Harmful", "80 % of gain"]
    return write_terminal(Table(headings, rows, notes))


def _tell(value: float | None, low: float | None, high: float | None, form: str, unit: float = 1) -> str:
    """A figure, times `unit`, with its interval where it has one."""
    if value is None:
        return ""
    bounds = "" if low is None or high is None else f" ({unit * low:{form}} to {unit * high:{form}})"
    return f"{unit * value:{form}}{bounds}"


def _show_auroc(table: pl.DataFrame) -> str:
    kinds = table["kind"].unique(maintain_order=True).to_list()
    known = table.filter(pl.col("auroc").is_not_null()).select("score", "kind", "auroc", "low", "high")
    cells = {(score, kind): _tell(area, low, high, ".2f") for score, kind, area, low, high in known.iter_rows()}
    scores = table["score"].unique(maintain_order=True).to_list()
    rows = [[score, *(cells.get((score, kind), "") for kind in kinds)] for score in scores]
    note = f"AUROC of each score for an effect above {100 * effects.LARGE:.0f} points, with 95 % over problems: 0.5 is chance."
    return write_terminal(Table(["Score", *kinds], rows, [note]))
