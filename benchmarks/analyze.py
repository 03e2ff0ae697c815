"""How long does `lm-eval-takeover analyze` take over a large scores file, and in how much memory?

    python benchmarks/analyze.py [--rows 100000000] [--tokens 2000] [--keep FOLDER]

Writes a base run of that many scored tokens (journal, verdicts and scores file; random scores, so nothing compresses), then runs
the command on it in a process of its own and prints seconds and peak memory. Goal: 10^8 rows in 90 s and 4 GB on two cores.
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

import numpy as np
import pyarrow as pa

from lm_eval_takeover.lab.score_files import SampleTokens, ScoresHeader, list_score_files, make_schema, write_scores
from lm_eval_takeover.results.files import MATHEMATICAL
from lm_eval_takeover.runs.journal import AskedSample, Journal, Sample
from lm_eval_takeover.runs.layout import SCORES_FOLDER, journal_path
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


def write_scores_files(folder: Path, count: int, tokens: int) -> None:
    """Files of whole samples."""
    rng = np.random.default_rng(1)
    schema, at_once = make_schema(SCORES), max(1, GROUP // tokens)
    floats = {f.name: rng.exponential(size=(at_once, tokens)) ** 4 for f in schema if pa.types.is_floating(f.type)}
    integers = {
        f.name: rng.integers(1, VOCABULARY, (at_once, tokens))
        if "top" in f.name[-4:]
        else rng.geometric(0.6, (at_once, tokens))
        for f in schema
        if pa.types.is_integer(f.type) and f.name not in ("doc_id", "sample", "position", "token_id")
    }
    ids = rng.integers(0, VOCABULARY, (at_once, tokens))
    header = ScoresHeader({"id": "b", "dtype": "f"}, {"id": "g", "dtype": "f"}, dict.fromkeys(SCORES))
    for start in range(0, count, at_once):
        columns = {"token_id": ids, **floats, **integers}
        samples = {
            number.to_bytes(16, "big"): SampleTokens(name_sample(number), {name: of[place] for name, of in columns.items()})
            for place, number in enumerate(range(start, min(start + at_once, count)))
        }
        write_scores(folder, header, samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**8, help="tokens (default: 10^8)")
    parser.add_argument("--tokens", type=int, default=2000, help="of a sample (default: 2000)")
    parser.add_argument("--keep", type=Path, help="where the run is written and stays (default: a folder that is removed)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary) / "run"
        count = options.rows // options.tokens
        if not (folder / SCORES_FOLDER).exists():
            folder.mkdir(parents=True, exist_ok=True)
            started = time.perf_counter()
            write_journal(folder, count, options.tokens)
            write_scores_files(folder, count, options.tokens)
            size = sum(path.stat().st_size for path in list_score_files(folder)) / 1e9
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
