"""The figures of docs/frontier.md: docs/images/frontier.json and the picture beside it, from one comparison on the demo pair.

    lm-eval-takeover compare --tasks takeover_demo_graded \\
        --rows base,guide,ce,entropy,surprise,random,early,rkl,js,margin,confidence,top1,log_ratio,lossy,segment,ensemble \\
        --rates 0.01,0.02,0.05,0.1,0.2 --batch_size 400 --limit 40 --num_prompts 40 --num_held_out 40 --run_dir runs/frontier
    python scripts/read_demo_frontier.py runs/frontier
    python scripts/write_docs_tables.py                   puts the figures into the page
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from draw_demo_results import IMAGES
from graded_puzzle import read_texts

from lm_eval_takeover.results.frontier import CAP, Oracle

FIGURES = IMAGES / "frontier.json"
KNOWN = "surprise@0.05"  # whose traces have the base's own draws of many right texts
OFF = 0.005  # from the asked rate: what the table marks


def read_frontier(run_dir: Path) -> dict[str, Any]:
    """Each row, the areas, and the oracle of the true decisions."""
    lines = [line for line in json.loads((run_dir / "frontier.json").read_text()) if line["task"] == "average"]
    names = ("method", "rate", "realized_rate", "acc", "acc_low", "acc_high", "pass8")
    rows = [{name: line[name] for name in names} for line in lines]
    areas = [
        line
        for line in json.loads((run_dir / "frontier_area.json").read_text())
        if (line["axis"], line["task"], line["metric"]) == ("share", "average", "acc")
    ]
    oracle = read_oracle(run_dir, sorted({row["rate"] for row in rows if row["rate"]}))
    return {"rows": [_round(row) for row in rows], "areas": [_round(area) for area in areas], "oracle": _round(oracle)}


def read_oracle(run_dir: Path, rates: Sequence[float]) -> dict[str, Any]:
    """Which texts that the base gets wrong can be right, and how few takeovers each needs: the cheapest come first.

    A right text of one gate needs those where the base's own draw leaves all right solutions; one that is correct on another way
    needs what the gate changed.
    """
    texts, correct = read_texts(run_dir / KNOWN / "samples"), [_read_correct(run_dir / row) for row in ("base", KNOWN)]
    needed = {key: puzzle.needed_takeovers(tokens, drawn) for key, (puzzle, tokens, drawn) in texts.items()}
    right = {key: (len(places), len(texts[key][1])) for key, places in needed.items() if places is not None}
    changed = {key: sum(a != b for a, b in zip(*texts[key][1:], strict=True)) for key in texts if correct[1][key]}
    costs = {key: right.get(key, (changed.get(key),))[0] for key in right.keys() | changed.keys() if not correct[0][key]}
    tokens = sum(len(tokens) for _, tokens, _ in texts.values())
    oracle = Oracle.of(np.array(list(costs.values())) / tokens, np.full(len(costs), 1 / len(texts)), 1.0)
    acc = sum(correct[0].values()) / len(texts)
    share = sum(count for count, _ in right.values()) / sum(length for _, length in right.values())
    known = {
        "row": KNOWN,
        "texts": len(right),
        "needed": share,
        "area": oracle.area(CAP),
        "most": acc + oracle.gain(1.0),
    }
    return known | {
        "whole_at": float(oracle.costs[-1]),
        "acc": {f"{rate:g}": acc + oracle.gain(rate) for rate in rates},
    }


def _read_correct(folder: Path) -> dict[tuple[int, int], bool]:
    """By document and sample."""
    (path,) = folder.glob("results-*/**/samples_*.jsonl")
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    return {(d["doc_id"], n): said[1] == "correct" for d in documents for n, said in enumerate(d["filtered_resps"][0])}


def _round(line: dict[str, Any]) -> dict[str, Any]:
    values = {name: _round(value) if isinstance(value, dict) else value for name, value in line.items()}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}


def rates_table() -> str:
    """By method and asked rate: Acc, and the realized rate in brackets."""
    rows: dict[str, dict[float, dict[str, Any]]] = {}
    for row in _read()["rows"]:
        if row["rate"] is not None:
            rows.setdefault(row["method"], {})[row["rate"]] = row
    rates = sorted({rate for of_method in rows.values() for rate in of_method})
    heads = ["method", *(f"Acc at {rate:.0%}" for rate in rates)]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for method, found in rows.items():
        cells = [_show_rate(found.get(rate), rate) for rate in rates]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    best = [_read()["oracle"]["acc"][f"{rate:g}"] for rate in rates]
    lines.append(f"| oracle | {' | '.join(f'{acc:.1%}' for acc in best)} |")
    return "\n".join(lines)


def _show_rate(row: dict[str, Any] | None, rate: float) -> str:
    if row is None:
        return ""
    written = row["realized_rate"]
    shown = "" if written is None else f" ({written:.1%}{'*' if abs(written - rate) > OFF else ''})"
    return f"{row['acc']:.1%}{shown}"


def areas_table() -> str:
    """By method: the area, its steps, its difference from three others, marked at p < 5 % by Holm, and the least cost of 90 %."""
    areas: dict[str, dict[str | None, dict[str, Any]]] = {}
    for area in _read()["areas"]:
        areas.setdefault(area["method"], {})[area["versus"]] = area
    lines = [
        "| method | area | of the oracle | steps | minus `random` | minus `entropy` | minus `ce` | 90 % of the gain at |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        f"| oracle | {100 * (best := _read()['oracle']['area']):+.1f} | 100 % | | | | | |",
    ]
    for method, found in sorted(areas.items(), key=lambda item: -next(iter(item[1].values()))["area"]):
        own = next(iter(found.values()))
        steps = (100 * own["area_low_step"], 100 * own["area_high_step"])
        cells = [
            _show_points(own, "area", "low", "high"),
            f"{own['area'] / best:.0%}",
            "{:+.1f} to {:+.1f}".format(*steps),
        ]
        for versus in ("random", "entropy", "ce"):
            cells.append(_show_points(found.get(versus), "difference", "difference_low", "difference_high"))
        cells.append("not reached" if own["least_cost_90"] is None else f"{own['least_cost_90']:.1%}")
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _show_points(area: dict[str, Any] | None, name: str, low: str, high: str) -> str:
    if area is None:
        return ""
    mark = "*" if name == "difference" and area["p_holm"] < 0.05 else ""
    return f"{100 * area[name]:+.1f}{mark} ({100 * area[low]:+.1f} to {100 * area[high]:+.1f})"


def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", type=Path, help="the --run_dir of that comparison")
    run_dir = parser.parse_args().comparison
    FIGURES.write_text(json.dumps(read_frontier(run_dir), indent=1) + "\n")
    shutil.copy(run_dir / "frontier.svg", IMAGES / "frontier.svg")


if __name__ == "__main__":
    main()
