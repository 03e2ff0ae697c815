"""How fast are 8 x 674 OlympiadBench responses of 2,000 tokens scored, beside plain single-process math_verify?

    python benchmarks/scoring.py [--rounds 3]

Responses: the problem's own worked solution, repeated to about 8,000 characters (2,000 tokens), with a final answer that is the
gold one respelt, a wrong one of the same kind, another problem's, or none. The same responses in the same run, interleaved;
math_verify in this process with its own extraction and time-outs, on every eighth problem (it is slow). Reads the data set
through `datasets` (set HF_ENDPOINT for a mirror).
"""

import argparse
import logging
import random
import statistics
import time

import math_verify
from gold_forms import forms, near_misses

from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.tasks.loading import load_named_tasks
from lm_eval_takeover.tasks.metrics import score_samples

CHARACTERS = 8_000
SAMPLES = 8
EXTRACTORS = [math_verify.LatexExtractionConfig(boxed_match_priority=0), math_verify.ExprExtractionConfig()]


def problems() -> list[tuple[str, list[str]]]:
    """`(gold, 8 responses)` of each problem, the same on every run."""
    (task,) = load_named_tasks(["takeover_olympiadbench"]).values()
    rows = task.dataset[task.config.test_split]
    rng = random.Random(0)
    golds = [str(doc["answer"]) for doc in task.test_docs()]
    made = []
    for row, gold in zip(rows, golds, strict=True):
        worked = " ".join(row["solution"]).replace("\\boxed", "")
        body = (worked * (CHARACTERS // max(1, len(worked)) + 1))[:CHARACTERS]
        right, wrong = list(forms(gold)), [f"\\boxed{{{miss}}}" for miss in near_misses(gold)]
        wrong.append(f"\\boxed{{{rng.choice(golds).replace('$', '')}}}")
        endings = [rng.choice(right if rng.random() < 0.5 else wrong) for _ in range(SAMPLES - 1)]
        made.append((gold, [f"{body}\n\n{ending}" for ending in [*endings, "and so on"]]))
    return made


def ours(cases: list[tuple[str, list[str]]]) -> float:
    start = time.perf_counter()
    with Judge() as judge:
        scored = judge.map(lambda case: score_samples(case[0], case[1], judge.judge_samples), cases)
        correct = sum(sample.outcome == "correct" for samples, _ in scored for sample in samples)
        print(f"    acc {correct / SAMPLES / len(cases):.3f}", end="", flush=True)
    return time.perf_counter() - start


def plain(cases: list[tuple[str, list[str]]]) -> float:
    start = time.perf_counter()
    correct = 0
    for gold, responses in cases:
        parsed = math_verify.parse(f"${gold.replace('$', '')}$", EXTRACTORS)
        correct += sum(bool(math_verify.verify(parsed, math_verify.parse(text, EXTRACTORS))) for text in responses)
    print(f"    acc {correct / SAMPLES / len(cases):.3f}", end="", flush=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    logging.disable(logging.WARNING)
    cases = problems()
    share = cases[::8]
    seconds: dict[str, list[float]] = {"ours": [], "math_verify": []}
    for _ in range(rounds):
        seconds["ours"].append(ours(cases))
        print(f"  ours {seconds['ours'][-1]:.1f} s", end="")
        seconds["math_verify"].append(plain(share))
        print(f"  math_verify (an eighth) {seconds['math_verify'][-1]:.1f} s")
    total, part = SAMPLES * len(cases), SAMPLES * len(share)
    mine, theirs = total / statistics.median(seconds["ours"]), part / statistics.median(seconds["math_verify"])
    print("\n|scorer|responses|seconds|responses/s|ratio|\n|---|--:|--:|--:|--:|")
    print(
        f"|all cores, workers started and ended|{total}|{statistics.median(seconds['ours']):.1f}|{mine:.0f}|{mine / theirs:.1f}|"
    )
    print(f"|plain math_verify, one process|{part}|{statistics.median(seconds['math_verify']):.1f}|{theirs:.0f}|1.0|")


if __name__ == "__main__":
    main()
