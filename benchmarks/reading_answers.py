"""How often is the final answer of a response without a box read as it was meant?

    python benchmarks/reading_answers.py [--texts FILE] [--math FILE] [--half even|odd] [--show N]

Reads texts that real models wrote: right and wrong GSM8K solutions without their answer line (`--texts`, a JSONL file with
`text`, `gold` and `right`), and MATH-500's solutions with each `\\boxed{X}` replaced by `X` (`--math`). Three readers beside
each other, all judged by the same comparison: ours, `math_verify.parse`, and the last number of the text. A row gives the share
of right texts that are read as right and the share of wrong ones that are. MATH-500's wrong ones are the same solutions against
the answer of the next problem. `--half` takes the problems of even or odd number only; `--show` lists that many of our misses.
"""

import argparse
import json
import logging
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lm_eval_takeover.answers.extraction import extract_answer, find_boxes
from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.verification import verify

SHARED = Path(__file__).parents[2] / "shared"
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


class Text(NamedTuple):
    text: str
    gold: str
    right: bool


def open_boxes(solution: str) -> str:
    """The solution with each box replaced by what it holds."""
    for start, end, content in reversed(find_boxes(solution)):
        solution = solution[:start] + content + solution[end:]
    return solution


def load_texts(path: Path, half: str) -> list[Text]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Text(row["text"], row["gold"], row["right"]) for row in rows if _is_in(half, row["doc"])]


def load_math(path: Path, half: str) -> list[Text]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    texts = []
    for number, row in enumerate(rows):
        if _is_in(half, number):
            opened, other = open_boxes(row["solution"]), rows[(number + 1) % len(rows)]["answer"]
            texts.append(Text(opened, row["answer"], True))
            if not verify(other, row["answer"]).correct:
                texts.append(Text(opened, other, False))
    return texts


def _is_in(half: str, number: int) -> bool:
    return half == "all" or number % 2 == (half == "odd")


def read_last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def judge_with_math_verify(row: Text) -> bool:
    import math_verify

    extractors = [math_verify.LatexExtractionConfig(), math_verify.ExprExtractionConfig()]
    gold, said = (math_verify.parse(text, extractors) for text in (f"${row.gold}$", row.text))
    return bool(math_verify.verify(gold, said))


def decide(judge: Judge, read: Callable[[str], str | None], row: Text) -> bool:
    answer = read(row.text)
    return answer is not None and judge(row.gold, answer).correct


def measure(rows: list[Text], decide: Callable[[Text], bool], judge: Judge) -> tuple[str, str, list[Text], float]:
    """`(right ones read, wrong ones read, those decided wrongly, milliseconds a text)`."""
    start = time.process_time()
    decided = list(judge.map(decide, rows))
    seconds = time.process_time() - start
    shares = []
    for right in (True, False):
        of_kind = [verdict for row, verdict in zip(rows, decided, strict=True) if row.right is right]
        shares.append(f"{sum(of_kind)} of {len(of_kind)} ({sum(of_kind) / max(1, len(of_kind)):.1%})")
    missed = [row for row, verdict in zip(rows, decided, strict=True) if verdict is not row.right]
    return shares[0], shares[1], missed, 1000 * seconds / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, default=SHARED / "answers/gsm8k_solutions.jsonl")
    parser.add_argument("--math", type=Path, default=SHARED / "hub/datasets/HuggingFaceH4/MATH-500/test.jsonl")
    parser.add_argument("--half", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--ours", action="store_true", help="leave the two other readers out")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print("|texts|reader|right, read as right|wrong, read as right|\n|---|---|--:|--:|")
    misses = []
    for name, path, load in (
        ("GSM8K solutions", options.texts, load_texts),
        ("MATH-500 solutions", options.math, load_math),
    ):
        if not path.exists():
            print(f"|{name}|not here: {path}| | |")
            continue
        rows = load(path, options.half)
        with Judge() as judge:
            readers = [("ours", extract_answer)] + ([] if options.ours else [("last number", read_last_number)])
            for reader, read in readers:
                right, wrong, missed, _ = measure(rows, partial(decide, judge, read), judge)
                print(f"|{name}|{reader}|{right}|{wrong}|", flush=True)
                misses += missed if reader == "ours" else []
        if not options.ours:
            decided = [judge_with_math_verify(row) for row in rows]
            shares = []
            for kind in (True, False):
                of_kind = [verdict for row, verdict in zip(rows, decided, strict=True) if row.right is kind]
                shares.append(f"{sum(of_kind)} of {len(of_kind)} ({sum(of_kind) / max(1, len(of_kind)):.1%})")
            print(f"|{name}|math_verify|{shares[0]}|{shares[1]}|", flush=True)
    for row in misses[: options.show]:
        print(
            f"\n{'right' if row.right else 'wrong'}: gold {row.gold!r}, read {extract_answer(row.text)!r}\n  …{row.text[-300:]!r}"
        )


if __name__ == "__main__":
    main()
