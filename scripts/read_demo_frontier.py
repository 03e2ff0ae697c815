"""The figures of docs/frontier.md: docs/images/frontier.json and the picture beside it, from one comparison on the demo pair.

    lm-eval-takeover compare --tasks takeover_demo \\
        --rows base,guide,ce,entropy,surprise,random,early,rkl,js,margin,confidence,top1,log_ratio,lossy,segment,ensemble \\
        --rates 0.01,0.02,0.05,0.1,0.2 --batch_size 400 --limit 25 --num_prompts 60 --num_held_out 100 --run_dir runs/frontier
    python scripts/read_demo_frontier.py runs/frontier
    python scripts/write_docs_tables.py                   puts the figures into the page
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from draw_demo_results import IMAGES, count_decisions

FIGURES = IMAGES / "frontier.json"
OFF = 0.005  # from the asked rate: what the table marks


def read_frontier(run_dir: Path) -> dict[str, Any]:
    """Each row with the share of true decisions that it lets the guide write (in one sample of each problem), and the areas."""
    rows = []
    for line in json.loads((run_dir / "frontier.json").read_text()):
        if line["task"] == "average":
            _, decisions, both = count_decisions(run_dir / line["row"] / "samples")
            held = {name: line[name] for name in ("method", "rate", "realized_rate", "acc", "pass8")}
            rows.append({**held, "found": both / decisions})
    areas = [
        line
        for line in json.loads((run_dir / "frontier_area.json").read_text())
        if (line["axis"], line["task"], line["metric"]) == ("share", "average", "acc")
    ]
    return {"rows": [_round(row) for row in rows], "areas": [_round(area) for area in areas]}


def _round(line: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in line.items()}


def rates_table() -> str:
    """By method and asked rate: Acc, the realized rate in brackets, and at three rates the true decisions that were found."""
    rows: dict[str, dict[float, dict[str, Any]]] = {}
    for row in _read()["rows"]:
        if row["rate"] is not None:
            rows.setdefault(row["method"], {})[row["rate"]] = row
    rates = sorted({rate for of_method in rows.values() for rate in of_method})
    heads = ["method", *(f"Acc at {rate:.0%}" for rate in rates), *(f"found at {rate:.0%}" for rate in rates[:3])]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'--:|' * (len(heads) - 1)}"]
    for method, found in rows.items():
        cells = [_show_rate(found.get(rate), rate) for rate in rates]
        cells += [f"{found[rate]['found']:.0%}" if rate in found else "" for rate in rates[:3]]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _show_rate(row: dict[str, Any] | None, rate: float) -> str:
    if row is None:
        return ""
    mark = "*" if abs(row["realized_rate"] - rate) > OFF else ""
    return f"{row['acc']:.1%} ({row['realized_rate']:.1%}{mark})"


def areas_table() -> str:
    """By method: the area, its steps, its difference from three others, marked at p < 5 % by Holm, and the least cost of 90 %."""
    areas: dict[str, dict[str | None, dict[str, Any]]] = {}
    for area in _read()["areas"]:
        areas.setdefault(area["method"], {})[area["versus"]] = area
    lines = [
        "| method | area | steps | minus `random` | minus `entropy` | minus `ce` | 90 % of the gain at |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for method, found in sorted(areas.items(), key=lambda item: -next(iter(item[1].values()))["area"]):
        own = next(iter(found.values()))
        steps = (100 * own["area_low_step"], 100 * own["area_high_step"])
        cells = [_show_points(own, "area", "low", "high"), "{:+.1f} to {:+.1f}".format(*steps)]
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
