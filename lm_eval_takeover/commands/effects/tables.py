"""What `effects` prints and writes: the cost before, then tables, figures and the texts for a report."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from lm_eval_takeover.analysis.effects import LARGE, TAKEOVER, tabulate_auroc, tabulate_by_score, tabulate_summary
from lm_eval_takeover.commands._output import Table, write_terminal
from lm_eval_takeover.commands.analyze.tables import write_analysis
from lm_eval_takeover.commands.effects.positions import Position
from lm_eval_takeover.runs.run_reader import RunReader
from lm_eval_takeover.storage.whole_files import write_text

EXAMPLES = "effect_examples.json"  # what a report shows
_MOST = 10  # examples of either sign
_CONTEXT, _BEHIND = 400, 1500  # characters before and behind a position that are shown
_VERDICTS = ("problem", "host", "donor")  # of a row, not of the table
_TEXTS = ("begun", "texts")


def describe_cost(run: RunReader, takeovers: Sequence[Position], known: int, options: argparse.Namespace) -> str:
    """Texts, tokens, passes and hours, if texts stay as long as the run's and are written as fast."""
    count = options.continuations
    texts = 2 * count * (len(takeovers) + options.controls)
    share = (len(takeovers) + options.controls) / len(takeovers)
    tokens = 2 * count * share * sum(max(one.length - one.place - 1, 0) for one in takeovers)
    written = sum(one.tokens for one in (answered.stored for answered in run.answered))
    passes = {"base": 1.0, "guide": 0.0}
    if options.after == "gate":
        stored = [answered.stored for answered in run.answered]
        passes = {role: sum(getattr(one, f"{role}_passes") for one in stored) / written for role in passes}
    hours = f"{tokens * run.seconds / written / 3600:,.1f}" if run.seconds else "?"
    return (
        f"{len(takeovers):,} of {known:,} takeovers and {options.controls:,} controls, {count} continuations behind each token: "
        f"{texts:,} texts, about {tokens:,.0f} tokens, {tokens * passes['base']:,.0f} passes of the base, "
        f"{tokens * passes['guide']:,.0f} of the guide; {hours} hours at the speed of the run"
    )


def write_effects(
    folder: Path, run: RunReader, tokenizer: Any, rows: Sequence[Mapping[str, Any]], signals: Sequence[str], after: str
) -> None:
    """Tables and figures into the folder, and the summary to the terminal. `signals`: columns to hold effects against."""
    positions = pl.DataFrame([{name: row[name] for name in row if name not in _TEXTS} for row in rows])
    tables = {
        "effects": positions.drop(_VERDICTS),
        "effect_by_score": tabulate_by_score(positions, signals),
        "effect_summary": tabulate_summary(positions),
        "effect_auroc": tabulate_auroc(positions, signals),
    }
    for name, table in tables.items():
        write_analysis(folder, name, table)
    examples = [_describe_example(row, tokenizer) for row in _choose_examples(rows)]
    write_text(
        folder / EXAMPLES, json.dumps({"run": run.label, "after": after, "positions": examples}, indent=1) + "\n"
    )
    print(_show_summary(tables["effect_summary"], after))
    print(_show_auroc(tables["effect_auroc"]))
    print(f"{', '.join(tables)} -> {folder}")


def _choose_examples(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The takeovers of the largest effects of either sign; of equal ones the first."""
    ordered = sorted((row for row in rows if row["kind"] == TAKEOVER), key=lambda row: -row["effect"])
    helpful = [row for row in ordered if row["effect"] > 0][:_MOST]
    return helpful + [row for row in ordered[::-1] if row["effect"] < 0][:_MOST]


def _describe_example(row: Mapping[str, Any], tokenizer: Any) -> dict[str, Any]:
    """The text before a position, its two tokens, and what was written behind either."""
    before = tokenizer.decode(row["begun"])
    half = len(row["texts"]) // 2
    return {
        **{name: row[name] for name in ("task", "doc_id", "sample", "position", "score", "effect", "low", "high")},
        "before": before[-_CONTEXT:],
        "clipped": len(before) > _CONTEXT,
        **{
            role: {
                "token": tokenizer.decode([row[f"{role}_token_id"]]),
                "behind": [
                    {"text": text[len(before) :][:_BEHIND], "correct": correct}
                    for text, correct in zip(texts, row[role], strict=True)
                ],
            }
            for role, texts in (("host", row["texts"][:half]), ("donor", row["texts"][half:]))
        },
    }


def _show_summary(table: pl.DataFrame, after: str) -> str:
    rows = [
        [
            row["kind"],
            str(row["positions"]),
            f"{100 * row['effect']:+.1f}",
            f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}",
            f"{row['helpful']:.0%}",
            f"{row['harmful']:.0%}",
            "" if row["share_for_80"] is None else f"{row['share_for_80']:.0%}",
        ]
        for row in table.iter_rows(named=True)
    ]
    notes = [
        f"Effect: correct continuations with the donor's token minus with the host's, in points; 95 % over problems. "
        f"After the token, {'the default writer goes on alone' if after == 'base' else 'the run goes on with its gate'}.",
        f"Helpful, harmful: effect beyond {100 * LARGE:.0f} points. 80 % of gain: the share of positions that brings it.",
    ]
    return write_terminal(
        Table(["Positions", "N", "Effect", "95 %", "Helpful", "Harmful", "80 % of gain"], rows, notes)
    )


def _show_auroc(table: pl.DataFrame) -> str:
    rows = [
        [
            row["score"],
            *(["", ""] if row["auroc"] is None else [f"{row['auroc']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}"]),
        ]
        for row in table.iter_rows(named=True)
    ]
    above = max(table["above"].to_list(), default=0)
    note = (
        f"AUROC of each score for an effect above {100 * LARGE:.0f} points, which {above} takeovers and controls have."
    )
    return write_terminal(Table(["Score", "AUROC", "95 %"], rows, [note]))
