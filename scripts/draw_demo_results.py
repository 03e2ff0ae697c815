"""The picture of the demo's result: docs/images/demo.svg, drawn from docs/images/demo.json.

    lm-eval-takeover compare --tasks takeover_demo --target_rate 0.05 --batch_size 400 \\
        --rows base,random,early,guided,guide --run_dir runs/demo
    python scripts/draw_demo_results.py runs/demo     reads that comparison into demo.json, then draws
    python scripts/draw_demo_results.py               draws anew from demo.json

`scripts/write_docs_tables.py` then puts the same figures into docs/demo.md.
"""

import argparse
import json
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent.parent / "docs" / "images"
FIGURES = IMAGES / "demo.json"
PICTURE = IMAGES / "demo.svg"
METHODS = {"base": "base alone", "random": "random", "early": "early only", "guided": "guided", "guide": "guide alone"}
INK = "#7a7d82"  # a contrast of 4 on white and on a dark page alike
GUIDED, OTHERS = "#2f81f7", "#9aa0a6"


def read_comparison(run_dir: Path) -> dict[str, Any]:
    """The methods, and the gate against the true decisions, of a comparison on the demo pair."""
    rows = {row["kind"]: row for row in json.loads((run_dir / "leaderboard.json").read_text())["rows"]}
    takeovers, decisions, both = count_decisions(run_dir / "guided" / "samples")
    return {
        "methods": [{"method": METHODS[kind], **_shares(kind, rows[kind])} for kind in METHODS if kind in rows],
        "gate": {
            "takeovers": takeovers,
            "decisions": decisions,
            "precision": round(both / takeovers, 3),
            "recall": round(both / decisions, 3),
        },
    }


def _shares(kind: str, row: dict[str, Any]) -> dict[str, float | None]:
    cell, alone = row["tasks"]["takeover_demo"], {"base": 0.0, "guide": 1.0}.get(kind)
    found = {"realized_rate": row["realized_rate"], "acc": cell["acc"], "pass8": cell["pass8"]}
    shares: dict[str, float | None] = {name: round(value, 3) for name, value in found.items()}
    for name in ("acc", "pass8"):
        value = row["recovery"][name] if alone is None else alone
        shares[f"recovery_{name}"] = None if value is None else round(value, 2)
    return shares


def count_decisions(run_dir: Path) -> tuple[int, int, int]:
    """`(takeovers, true decisions, takeovers at true decisions)` in the traces of a run, over one sample of each problem."""
    from puzzle import decision_positions
    from transformers import AutoTokenizer

    from lm_eval_takeover.demo import DEMO
    from lm_eval_takeover.runs.run_reader import read_run_folder

    tokenizer, run = AutoTokenizer.from_pretrained(DEMO["base"]), read_run_folder(run_dir)
    takeovers = decisions = both = 0
    for _, trace in run.read_traces(["token_id", "chosen_from"], [one for one in run.answered if one.sample == 0]):
        taken = trace["chosen_from"] == "guide"
        found = decision_positions([tokenizer.decode([token]) for token in trace["token_id"].tolist()])
        takeovers += int(taken.sum())
        decisions += len(found)
        both += int(taken[found].sum())
    return takeovers, decisions, both


def draw(methods: list[dict[str, Any]], path: Path) -> None:
    """Acc by method as bars, with Acc and the realized rate in words."""
    import matplotlib.pyplot as plt

    plt.rcParams |= {"font.size": 12}
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
    axes.set_yticks(range(len(methods)), [f"{row['method']}, {row['realized_rate']:.1%} of the tokens" for row in methods])
    leave_bars(axes, 1.2)
    axes.set_title("Acc, and the share of the tokens that the guide wrote", color=INK, fontsize=12, loc="left")
    save_picture(figure, path)


def leave_bars(axes: Any, width: float) -> None:
    """Take away all but bars, names and words; the first bar on top."""
    axes.tick_params(length=0, colors=INK)
    axes.set_xticks([])
    axes.set_xlim(0, width)
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)


def save_picture(figure: Any, path: Path) -> None:
    """As SVG whose text stays text; the same file each time that it is drawn."""
    import matplotlib.pyplot as plt

    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "demo", "font.family": "sans-serif"}):
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", nargs="?", type=Path, help="the --run_dir of that comparison")
    options = parser.parse_args()
    if options.comparison:
        FIGURES.write_text(json.dumps(read_comparison(options.comparison), indent=1) + "\n")
    draw(json.loads(FIGURES.read_text())["methods"], PICTURE)


if __name__ == "__main__":
    main()
