"""The largest effects of single takeovers, as `effects` left them in its folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lm_eval_takeover.commands.effects.tables import EXAMPLES
from lm_eval_takeover.commands.report.figures import read_figure
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.storage.regular_files import read_bounded

CAPTIONS = {
    "effect_summary": "Mean effect of takeovers and of controls",
    "effects": "How many positions have which effect",
    "effect_by_score": "Mean effect by tenth of each score",
    "effect_auroc": "How well each score tells positions with a large effect",
}
_POSITION = {
    "task": str,
    "doc_id": int,
    "sample": int,
    "position": int,
    "effect": float,
    "low": float,
    "high": float,
    "before": str,
}


@dataclass(frozen=True)
class Effects:
    """`positions` are those of the largest effects of either sign, with the texts behind both tokens."""

    run: str
    after: str
    positions: list[dict[str, Any]]
    figures: list[tuple[str, str, Markup]]


def read_effects(folder: Path) -> Effects:
    """Raises ArgumentError for a folder that `effects` did not write."""
    path = folder / EXAMPLES
    try:
        found = json.loads(read_bounded(path))
        positions = [_check(position) for position in found["positions"]]
        run, after = str(found["run"]), str(found["after"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ArgumentError(
            f"--effects '{folder}' cannot be read: {error}; expected what lm-eval-takeover effects was given as --out"
        ) from error
    return Effects(
        run, after, positions, [(name, CAPTIONS[name], read_figure(folder / f"{name}.svg")) for name in CAPTIONS]
    )


def _check(position: dict[str, Any]) -> dict[str, Any]:
    """The fields that the page shows, in their types."""
    sides = {
        role: {
            "token": str(position[role]["token"]),
            "behind": [(str(one["text"]), bool(one["correct"])) for one in position[role]["behind"]],
        }
        for role in ("host", "donor")
    }
    return {name: kind(position[name]) for name, kind in _POSITION.items()} | sides
