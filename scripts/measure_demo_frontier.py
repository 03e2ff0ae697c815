"""The figures of docs/lab/frontier.md: docs/images/frontier.json and the pictures, from one comparison on the demo pair.

    python scripts/measure_demo_frontier.py [--work runs/frontier]     runs the page's commands, then reads it and draws
    python scripts/write_docs_tables.py                                puts the figures into the page
    python scripts/measure_demo_frontier.py --kills 12                 is it the same if it is killed and resumed?

What is finished in the folder is used again. With `--kills`, the comparison is made once more in a folder beside it, from the
same calibration. SIGKILL ends it at so many random moments, and it is resumed each time. All rows must have the same texts and
all figures be equal, but for the clock's seconds and the passes as made: drafts are as long as the run's drafts so far let
expect, and a resumed run knows of none. It takes 21 minutes of processor time, and `--kills` a little more than that.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import split
from typing import Any

import numpy as np
from draw_demo_results import IMAGES
from graded_puzzle import read_texts

from lm_eval_takeover.lab.frontier.curves import CAP, Oracle
from lm_eval_takeover.lab.frontier.output import draw_frontier
from lm_eval_takeover.results.files import read_run

COMMAND = split(
    "compare --tasks takeover_demo_graded --rows base,guide,drafted,ce,entropy,surprise,random,early,rkl,js,margin,"
    "confidence,top1,log_ratio,lossy,segment,ensemble --rates 0.01,0.02,0.05,0.1,0.2 --batch_size 400 --limit 40 "
    "--num_prompts 40 --num_held_out 40 --quiet --run_dir"
)
MADE = ("seconds_per_problem", "donor_passes_per_token", "weights_per_token")  # columns that are as made
FIGURES = IMAGES / "frontier.json"
KNOWN = "surprise@0.05"  # whose traces have the base's own draws of many right texts
OFF = 0.005  # from the asked rate: what the table marks


def read_frontier(run_dir: Path) -> dict[str, Any]:
    """Each row, the areas, and the oracle of the true decisions."""
    lines = read_averages(run_dir)
    names = ("method", "rate", "realized_rate", "acc", "acc_low", "acc_high", "pass8")
    rows = [{name: line[name] for name in names} for line in lines]
    areas = [
        line
        for line in json.loads((run_dir / "frontier_area.json").read_text())
        if (line["axis"], line["task"], line["metric"]) == ("share", "average", "acc")
    ]
    oracle = read_oracle(run_dir, sorted({row["rate"] for row in rows if row["rate"]}))
    return {"rows": [_round(row) for row in rows], "areas": [_round(area) for area in areas], "oracle": _round(oracle)}


def read_averages(run_dir: Path) -> list[dict[str, Any]]:
    """What is drawn of a comparison."""
    return [line for line in json.loads((run_dir / "frontier.json").read_text()) if line["task"] == "average"]


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
    (path,) = folder.glob("results/**/samples_*.jsonl")
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


def draw(run_dir: Path, oracle: dict[str, Any]) -> None:
    """By share with a row of the oracle at each rate, which has no Pass@8 and no interval; by passes with the drafted guide."""
    lines = read_averages(run_dir)
    for rate, acc in oracle["acc"].items():
        named = {"row": f"oracle@{rate}", "method": "oracle", "rate": float(rate), "realized_rate": float(rate), "acc": acc}
        lines.append(dict.fromkeys(lines[0]) | named)
    (IMAGES / "frontier.svg").write_text(draw_frontier(lines, "share"))
    few = [line | {"pass8": None} for line in lines if line["method"] != "early"]  # which takes more than one pass a token
    (IMAGES / "frontier_passes.svg").write_text(draw_frontier(few, "passes"))


def compare(run_dir: Path, *, seconds: float | None = None) -> int | None:
    """The status of the comparison and of its frontier; None if it was killed after so many seconds."""
    cli = shlex.join([sys.executable, "-m", "lm_eval_takeover.cli"])
    folder = shlex.quote(str(run_dir))
    command = f"{cli} {shlex.join(COMMAND)} {folder} && exec {cli} frontier {folder} --out {folder}"
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def compare_killed(whole: Path, kills: int, most: float) -> int:
    """Kill and resume so many times, each within `most` seconds of its start; prints what differs. 1: something that must not."""
    generator, killed = random.Random(0), whole.with_name(f"{whole.name}-killed")
    killed.mkdir(exist_ok=True)
    for path in whole.glob("calibration-*.json"):
        shutil.copy(path, killed)
    for number in range(kills):
        status = compare(killed, seconds=generator.uniform(0, most))
        finished = len(list(killed.glob("*/results/*/results_*.json")))
        print(f"kill {number + 1}: {finished} rows are done" if status is None else "it has ended before", flush=True)
    if status := compare(killed):
        return status
    rows = [path.parent.name for path in sorted(whole.glob("*/samples"))]
    other_texts = [row for row in rows if len({digest_texts(folder / row) for folder in (whole, killed)}) > 1]
    print(f"rows with other texts: {len(other_texts)} of {len(rows)} {' '.join(other_texts)}")
    differ, known, most_made = 0, 0, dict.fromkeys(MADE, 0.0)
    for name in ("frontier.json", "frontier_area.json"):
        pairs = zip(*(json.loads((folder / name).read_text()) for folder in (whole, killed)), strict=True)
        for first, second in pairs:
            if first.get("axis") in ("seconds", "passes", "weights"):
                continue  # least costs, which follow from the columns below
            for column in MADE if name == "frontier.json" else ():
                if first[column]:
                    most_made[column] = max(most_made[column], abs(second[column] / first[column] - 1))
            figures = {column: value for column, value in first.items() if column not in MADE}
            differ += sum(second[column] != value for column, value in figures.items())
            known += len(figures)
    print(f"figures that differ: {differ} of {known}; as made, at most: {most_made}")
    return int(bool(differ or other_texts))


def digest_texts(row: Path) -> tuple[str, ...]:
    """Of all responses of a row, by its calls."""
    runs = [read_run(path) for path in sorted(row.glob("results/**/results_*.json"))]
    return tuple(result.problems.texts for run in runs for result in run.tasks.values() if result.problems)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("runs/frontier"), help="the --run_dir of the comparison")
    parser.add_argument("--kills", type=int, help="kill a second comparison so many times, and compare both")
    parser.add_argument("--seconds", type=float, default=150.0, help="the longest time between two kills (default: 150)")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    if status := compare(options.work):
        sys.exit(status)
    if options.kills is not None:
        sys.exit(compare_killed(options.work, options.kills, options.seconds))
    figures = read_frontier(options.work)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    draw(options.work, figures["oracle"])


if __name__ == "__main__":
    main()
