"""The paper's rows in the shape of measured ones."""

from typing import Any

from lm_eval_takeover.results.published import PublishedRow, read_published_rows

NOT_PRINTED = "not printed in the source, or lost there"
LOST = "(spike ratio lost in print)"  # the source has an empty bracket there
Pair = tuple[float | None, float | None]


def list_published_rows() -> list[dict[str, Any]]:
    """The rows of the paper's tables of results, in its order."""
    return [_as_row(row) for row in read_published_rows()]


def _as_row(row: PublishedRow) -> dict[str, Any]:
    printed = row.average != (None, None)
    recovery: dict[str, Any] = {}
    for metric, value in zip(("acc", "pass8"), row.recovery, strict=True):
        recovery |= {metric: value, f"{metric}_low": None, f"{metric}_high": None}
        recovery |= {f"{metric}_why": NOT_PRINTED} if value is None else {}
    return {
        "model": row.model.replace("()", LOST),
        "kind": row.kind,
        "source": f"published, Table {row.table}",
        "nominal": row.nominal,
        "realized_rate": None,
        "tasks": {task: _as_cell(pair) for task, pair in row.tasks.items()},
        "average": _as_cell(row.average) if printed else None,
        **({} if printed else {"average_why": NOT_PRINTED}),
        "recovery": recovery,
        "reference": None,
        "cost": {},
    }


def _as_cell(pair: Pair) -> dict[str, Any]:
    cell: dict[str, Any] = {"k": 8}
    for metric, value in zip(("acc", "pass8"), pair, strict=True):
        cell |= {metric: value, f"{metric}_low": None, f"{metric}_high": None}
    return cell | {"problems": None, "samples": None}
