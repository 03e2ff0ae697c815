"""The picture of the demo's result: docs/images/demo.svg, drawn from docs/images/demo.json.

    lm-eval-takeover compare results/demo --early > results/demo.txt
    python scripts/draw_demo_results.py results/demo.txt        reads the printed comparison into demo.json, then draws
    python scripts/draw_demo_results.py                         draws anew from demo.json

`scripts/write_docs_tables.py` then puts the same figures into README.md and docs/demo.md.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent.parent / "docs" / "images"
FIGURES = IMAGES / "demo.json"
PICTURE = IMAGES / "demo.svg"
INK = "#7a7d82"  # a contrast of 4 on white and on a dark page alike
GUIDED, OTHERS = "#2f81f7", "#9aa0a6"


def read_comparison(text: str) -> dict[str, Any]:
    """The methods and the check against true decisions, from what `lm-eval-takeover compare` prints."""
    lines = iter(text.splitlines())
    header = next((line for line in lines if line.startswith("|Method|")), None)
    if header is None:
        raise SystemExit("error: no table '|Method|…' in it; expected what `lm-eval-takeover compare` prints")
    names = [name.lower().replace(" ", "_").replace("pass@8", "pass8") for name in header.strip("|").split("|")]
    next(lines)
    methods = []
    for line in lines:
        if not line.startswith("|"):
            break
        method, *shares = line.strip("|").split("|")
        methods.append({"method": method} | dict(zip(names[1:], map(_share, shares), strict=True)))
    gate = re.search(r"(\d+) takeovers, (\d+) decisions, precision ([\d.]+)%, recall ([\d.]+)%", text)
    if gate is None:
        raise SystemExit("error: it does not say how many takeovers stand at true decisions")
    takeovers, decisions, precision, recall = map(float, gate.groups())
    return {
        "methods": methods,
        "gate": {
            "takeovers": int(takeovers),
            "decisions": int(decisions),
            "precision": round(precision / 100, 3),
            "recall": round(recall / 100, 3),
        },
    }


def _share(percent: str) -> float:
    return round(float(percent.strip().rstrip("%")) / 100, 3)


def draw(methods: list[dict[str, Any]], path: Path) -> None:
    """Acc by method as bars, with Acc and the realized rate in words."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    # Text stays text, and the file is the same each time that it is drawn.
    plt.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "demo", "font.family": "sans-serif", "font.size": 12}
    figure, axes = plt.subplots(figsize=(7.6, 0.52 * len(methods) + 0.5), layout="constrained")
    for place, row in enumerate(methods):
        guided = row["method"] == "guided"
        axes.barh(place, row["acc"], height=0.66, color=GUIDED if guided else OTHERS)
        axes.text(
            row["acc"] + 0.012,
            place,
            f"{row['acc']:.1%}",
            va="center",
            color=GUIDED if guided else INK,
            weight="bold" if guided else "normal",
        )
    axes.set_yticks(
        range(len(methods)), [f"{row['method']}, {row['realized_rate']:.1%} of the tokens" for row in methods]
    )
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks([])
    axes.set_xlim(0, 1.2)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    axes.set_title("Acc, and the share of the tokens that the guide wrote", color=INK, fontsize=12, loc="left")
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "comparison", nargs="?", type=Path, help="what `lm-eval-takeover compare RESULTS --early` printed"
    )
    options = parser.parse_args()
    if options.comparison:
        FIGURES.write_text(json.dumps(read_comparison(options.comparison.read_text()), indent=1) + "\n")
    draw(json.loads(FIGURES.read_text())["methods"], PICTURE)


if __name__ == "__main__":
    main()
