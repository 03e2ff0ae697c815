"""The demo's part of docs/lab/effects.md, measured again: a guided run, its effects, the printed table and the picture.

    python scripts/measure_demo_effects.py [--problems 40] [--work results/effects]

What is finished in the folder is used again.
"""

import argparse
import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

from lm_eval_takeover.cli import main as run_command

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = (f"<!-- {word} scripts/measure_demo_effects.py -->" for word in ("written by", "end of"))
GATE = "tau=11,kappa=0"  # takes about three of four true decisions, and no synonym
SIZE = ["--takeovers", "200", "--controls", "100", "--continuations", "8", "--batch_size", "64"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--work", type=Path, default=Path("results/effects"))
    options = parser.parse_args()
    run, out = options.work / "guided", options.work / "effects"
    command = [sys.executable, "-m", "lm_eval", "--model", "guided-takeover", "--tasks", "takeover_demo"]
    command += ["--model_args", f"{GATE},run_dir={run}", "--limit", str(options.problems), "--batch_size", "64"]
    subprocess.run(command, check=True)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = run_command(["effects", str(run), "--out", str(out), *SIZE])
    if status:
        sys.exit(status)
    lines = [line.rstrip() for line in said.getvalue().replace(str(out), "effects").splitlines()]
    page = DOCS / "lab" / "effects.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([f"{before}{BEGIN}", "", "```", *lines, "```", "", f"{END}{after}"]))
    shutil.copy(out / "effects.svg", DOCS / "images" / "effects.svg")


if __name__ == "__main__":
    main()
