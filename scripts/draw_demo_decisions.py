"""The picture of where the demo's decisions lie: docs/images/decisions.svg, drawn from docs/images/decisions.json.

    make report
    python scripts/draw_demo_decisions.py results/report     reads those runs and analyses into decisions.json, then draws
    python scripts/draw_demo_decisions.py                    draws anew from decisions.json

Both are of the demo pair; docs/demo.md has the same figures in words.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from draw_demo_results import GUIDED, IMAGES, INK, OTHERS, leave_bars, save_picture

FIGURES = IMAGES / "decisions.json"
PICTURE = IMAGES / "decisions.svg"
TASK, SCORES, TOP = "takeover_demo", ("ce", "rkl", "js", "entropy"), 5  # per cent


def read_report(folder: Path) -> dict[str, Any]:
    """Three tables: decisions among the top scores of the scored base run, AUROC of failures, problems rescued and harmed."""
    failure, flips = (json.loads((folder / "analysis" / f"{name}.json").read_text()) for name in ("failure", "flips"))
    columns = ("auroc", "low", "high")
    return {
        "enrichment": measure_enrichment(folder / "base"),
        "auroc": {row["signal"]: [round(row[name], 3) for name in columns] for row in failure if row["task"] == TASK},
        "flips": {row["run"]: [row["rescued"], row["harmed"]] for row in flips if row["task"] == TASK},
    }  # fmt: skip


def measure_enrichment(run_dir: Path) -> dict[str, float]:
    """By score: the share of true decisions among the top 5 % of the tokens, over their share among all tokens."""
    from puzzle import decision_positions
    from transformers import AutoTokenizer

    from lm_eval_takeover.demo import DEMO
    from lm_eval_takeover.lab.sample_tokens import SampleTokens
    from lm_eval_takeover.runs.evidence import column_of
    from lm_eval_takeover.runs.run_reader import read_run_folder

    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    counts = {score: np.zeros(4) for score in SCORES}  # decisions and tokens in the top, decisions and tokens
    run = read_run_folder(run_dir)
    for _, _, columns in run.read_scores(["token_id", *map(column_of, SCORES)], run.answered):
        sample = SampleTokens((TASK, 0, 0), columns)
        decisions = np.zeros(len(sample), dtype=bool)
        decisions[decision_positions([tokenizer.decode([token]) for token in sample.columns["token_id"]])] = True
        for score, count in counts.items():
            (top,) = sample.tops(score, (TOP,))
            count += (decisions & top).sum(), top.sum(), decisions.sum(), len(sample)
    return {score: round(float((a / b) / (c / d)), 2) for score, (a, b, c, d) in counts.items()}


def draw(found: dict[str, Any], path: Path) -> None:
    """Three panels of bars, a row for each score or run."""
    import matplotlib.pyplot as plt

    figure, (enrichment, auroc, flips) = plt.subplots(1, 3, figsize=(11, 2.3), layout="constrained")
    times, areas, problems = found["enrichment"], found["auroc"], found["flips"]
    _bars(enrichment, {name: (value, f"{value:.1f} ×") for name, value in times.items()})
    enrichment.set_title(f"True decisions among the top {TOP} % by score", loc="left", fontsize=11, color=INK)
    _bars(auroc, {name: (value, f"{value:.2f}") for name, (value, _, _) in areas.items()})
    for place, (_, low, high) in enumerate(areas.values()):
        auroc.plot([low, high], [place - 0.42] * 2, color=INK, linewidth=1.5)
    auroc.set_title("AUROC of the largest scores for a failure", loc="left", fontsize=11, color=INK)
    _bars(flips, {name: (one, f"{one} rescued, {harmed} harmed") for name, (one, harmed) in problems.items()}, room=2.1)
    flips.set_title("Problems, against the base", loc="left", fontsize=11, color=INK)
    save_picture(figure, path)


def _bars(axes: Any, rows: dict[str, tuple[float, str]], room: float = 1.25) -> None:
    """A bar with its words for each row; `room` in lengths of the longest one."""
    longest = max(value for value, _ in rows.values())
    for place, (name, (value, words)) in enumerate(rows.items()):
        axes.barh(place, value, height=0.6, color=OTHERS if name in ("entropy", "random") else GUIDED)
        axes.text(value + 0.03 * longest, place, words, va="center", color=INK)
    axes.set_yticks(range(len(rows)), rows)
    leave_bars(axes, room * longest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", nargs="?", type=Path, help="the folder of `make report`")
    options = parser.parse_args()
    if options.report:
        FIGURES.write_text(json.dumps(read_report(options.report), indent=1) + "\n")
    draw(json.loads(FIGURES.read_text()), PICTURE)


if __name__ == "__main__":
    main()
