"""How long a finished comparison takes when it is given again: this checkout against another, in turns.

    git worktree add /tmp/before base-of-day
    python benchmarks/compare_again.py /tmp/before [--rounds 3]

Both run four rows of the demo pair once, each in a folder of its own. Then each command is given again so many times. Prints the
seconds of processor time of each turn, which hardly depend on what else runs, and the ratio of the fastest ones.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from shlex import split

HERE = Path(__file__).parent.parent
WORDS = split("compare --tasks takeover_demo --target_rate 0.05 --limit 1 --gen_kwargs max_gen_toks=16 --quiet")


def compare(checkout: Path, run_dir: Path) -> float:
    """The seconds of processor time of the command, by the code of this checkout."""
    words = [sys.executable, "-m", "lm_eval_takeover.cli", *WORDS, "--run_dir", str(run_dir)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        words,
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"},
        cwd=run_dir,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of what to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "now": HERE}
    with tempfile.TemporaryDirectory() as work:
        folders = {name: Path(work) / name for name in checkouts}
        for name, folder in folders.items():
            folder.mkdir()
            compare(checkouts[name], folder)
        seconds: dict[str, list[float]] = {name: [] for name in checkouts}
        for _ in range(options.rounds):
            for name, folder in folders.items():
                seconds[name].append(compare(checkouts[name], folder))
                print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    fastest = {name: min(turns) for name, turns in seconds.items()}
    print(f"before {fastest['before']:.2f} s, now {fastest['now']:.2f} s, ratio {fastest['now'] / fastest['before']:.2f}")


if __name__ == "__main__":
    main()
