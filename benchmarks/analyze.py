"""How long does `lm-eval-takeover analyze` take over many scores, and in how much memory?

    python benchmarks/analyze.py [--rows 100000000] [--tokens 2000] [--keep FOLDER]

Writes a base run of that many scored tokens (random scores, so nothing compresses), then runs the command on it in a process of
its own and prints seconds and peak memory. Goal: 10^8 rows in 90 s and 4 GB on two cores.
"""

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_takeover.results.files import MATHEMATICAL
from lm_eval_takeover.runs.evidence import ScoresHeader, list_score_columns, pack_scores
from lm_eval_takeover.runs.journal import AskedSample, Journal, Sample
from lm_eval_takeover.runs.layout import journal_path
from lm_eval_takeover.samples import Verdict
from lm_eval_takeover.storage.digests import digest_of_text

SAMPLES = 8  # of a problem
SCORES = ("ce", "rkl", "entropy", "js")
GROUP = 2**19  # rows
VOCABULARY = 400  # of the demo pair


def name_sample(number: int) -> tuple[str, int, int]:
    """Samples are spread over six tasks."""
    problem, sample = divmod(number, SAMPLES)
    return MATHEMATICAL[problem % 6], problem // 6, sample


def write_journal(folder: Path, count: int, tokens: int) -> None:
    """So many finished and verified samples of a base run."""
    rng = np.random.default_rng(0)
    with contextlib.closing(Journal(journal_path(folder, 0))) as journal:
        journal.begin_command("c", {"takeover": {"policy": "base"}, "settings": {}, "arguments": {}})
        samples, asked, verdicts = [], [], []
        for number in range(count):
            task, doc_id, sample = name_sample(number)
            key, text, doc = number.to_bytes(16, "big"), f"text {number}", f"{task} {doc_id}"
            samples.append(Sample(key, task, doc_id, sample, text, tokens, 0, 0, 0, tokens, 0, False))
            asked.append(AskedSample(task, doc, 0, sample, doc_id, "p", key))
            outcome = "correct" if rng.random() < 0.3 else "incorrect"
            verdicts.append(Verdict(doc, digest_of_text(text), "1", outcome))
        journal.add(samples)
        journal.set_asked("c", asked)
        journal.add_verdicts(verdicts)


def write_scores(folder: Path, count: int, tokens: int) -> None:
    """Scores of these samples."""
    rng = np.random.default_rng(1)
    header = ScoresHeader("base=b, guide=g", dict.fromkeys(SCORES))
    at_once = max(1, GROUP // tokens)
    columns: dict[str, Any] = {name: rng.exponential(size=(at_once, tokens)) ** 4 for name in list_score_columns(SCORES)}
    columns |= {name: rng.geometric(0.6, (at_once, tokens)) for name in columns if name.endswith("_rank")}
    columns |= {name: rng.integers(1, VOCABULARY, (at_once, tokens)) for name in columns if name.endswith(("_top", "_id"))}
    with contextlib.closing(Journal(journal_path(folder, 0))) as journal:
        for start in range(0, count, at_once):
            numbers = range(start, min(start + at_once, count))
            texts = ({name: values[number - start] for name, values in columns.items()} for number in numbers)
            packed = (pack_scores(header, text) for text in texts)
            journal.add_evidence("score", {number.to_bytes(16, "big"): of for number, of in zip(numbers, packed, strict=True)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**8, help="tokens (default: 10^8)")
    parser.add_argument("--tokens", type=int, default=2000, help="of a sample (default: 2000)")
    parser.add_argument("--keep", type=Path, help="where the run is written and stays (default: a folder that is removed)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "run"
        count = options.rows // options.tokens
        if not folder.exists() or not any(folder.iterdir()):
            folder.mkdir(parents=True, exist_ok=True)
            started = time.perf_counter()
            write_journal(folder, count, options.tokens)
            write_scores(folder, count, options.tokens)
            size = journal_path(folder, 0).stat().st_size / 1e9
            print(f"{count:,} samples, {count * options.tokens:,} rows, {size:.1f} GB", end=" ")
            print(f"written in {time.perf_counter() - started:.0f} s", flush=True)
        started = time.perf_counter()
        words = ["-m", "lm_eval_takeover.cli", "analyze", str(folder), "--out", str(Path(temporary) / "out")]
        subprocess.run([sys.executable, *words], check=True)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        cores = len(os.sched_getaffinity(0))
        print(f"analyzed in {seconds:.0f} s on {cores} cores, at most {peak:.2f} GB")


if __name__ == "__main__":
    main()
