"""How many answers that settle nothing count as correct: hedged or denied ones, and copies of the question's own number?

    python benchmarks/doubtful_answers.py [--show N]

Hedges: each form of words below with several gold numbers or letters, which it doubts, denies, or offers beside another.
Copies: real problems of MATH-500 and GSM8K (`../shared/hub`) whose words hold a number or calculation; the gold answer is the
same value in another form, as "Write 0.75 as a fraction" has it, and the response gives what stands in the problem. None of them
is correct. Prints how many are accepted, by form.
"""

import argparse
import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pyarrow.parquet as pq

from lm_eval_takeover.answers.response import PICTURE
from lm_eval_takeover.answers.samples import Question, judge_samples

HUB = Path(__file__).parents[2] / "shared/hub/datasets"
COPIES = 16  # of each kind
PATTERNS = {
    "decimal": r"(?<![\d.])(\d{0,2}\.\d{1,3})(?!\d)",
    "percentage": r"(?<![\d.])(\d{1,2})\\?%",
    "fraction": r"\\frac\{(\d{1,3})\}\{(\d{1,3})\}",
    "slashed": r"(?<![\d/])(\d)/(\d)(?![\d/])",
    "product": r"(?<![\d.])(\d{1,3}) ?(?:\\times|\\cdot) ?(\d{1,3})(?!\d)",
    "power": r"(?<![\d.])(\d{1,2})\^(\d)(?!\d)",
    "sum": r"(?<![\d.])(\d{1,3}) ?\+ ?(\d{1,3})(?!\d)",
}
RESPONSES = ("The answer is \\boxed{{{}}}.", "So it is ${}$.", "Answer: {}")
NUMBERS = (("7", "9"), ("12", "15"), ("0.5", "0.75"), ("36", "63"), ("140", "104"), ("3/4", "4/5"))
LETTERS = (("A", "B"), ("C", "D"), ("D", "A"))
# `{gold}` is the right answer, `{other}` a wrong one.
OF_NUMBERS = (
    "The answer is not {gold}.", "The answer isn't {gold}.", "The answer cannot be {gold}.", "It is not {gold}, nor {other}.",
    "The answer is {gold} or {other}.", "The answer is either {gold} or {other}.", "It might be {gold} or {other}.",
    "The answer is {gold}? No, {other}.", "The answer is {gold}, no wait, {other}.", "The answer is {gold}, but that is wrong.",
    "The answer would be {gold}, but this is incorrect.", "{gold} is wrong; the answer is {other}.", "Is it {gold}?",
    "The answer is between {gold} and {other}.", "The answer is more than {gold}.", "The answer is less than {gold}.",
    "It is at least not {gold}.", "I would rule out {gold}.", "\\boxed{{{gold}}} is not the answer.",
    "\\boxed{{{gold}}} is wrong.",
    "\\boxed{{{gold} \\text{{ or }} {other}}}", "\\boxed{{\\text{{not }} {gold}}}", "The answer is {gold} or possibly {other}.",
    "The answer is {gold}, or {other} if we count both.", "Maybe {gold}, maybe {other}.", "{gold} is impossible.",
)  # fmt: skip
OF_LETTERS = (
    "The answer is not {gold}.", "The answer is {gold} or {other}.", "The answer is {gold} or possibly {other}.", "Not {gold}.",
    "{gold} is wrong.", "The answer is {gold}?", "The answer isn't {gold}.", "It is either {gold} or {other}.",
    "\\boxed{{{gold}?}}",
    "\\boxed{{{gold} \\text{{ or }} {other}}}", "\\boxed{{{gold}, {other}}}", "{gold} and {other} are possible.",
    "I rule out {gold}.",
)  # fmt: skip


def list_hedges() -> list[tuple[str, Question]]:
    hedges = []
    for forms, pairs, kind in ((OF_NUMBERS, NUMBERS, "math"), (OF_LETTERS, LETTERS, "letters")):
        for form in forms:
            for gold, other in pairs:
                response = form.format(gold=gold, other=other)
                hedges.append((form, Question(gold, [response], [False], kind)))  # type: ignore[arg-type]
    return hedges


def list_copies() -> list[tuple[str, Question]]:
    """Numbers and calculations of the problem's words, not of its pictures; the gold is their value in another form."""
    rows = [json.loads(line)["problem"] for line in (HUB / "HuggingFaceH4/MATH-500/test.jsonl").read_text().splitlines()]
    rows += pq.read_table(HUB / "openai/gsm8k/main/test-00000-of-00001.parquet")["question"].to_pylist()
    found: dict[str, list[tuple[str, Question]]] = {}
    for problem in rows:
        for name, pattern in PATTERNS.items():
            if (match := re.search(pattern, PICTURE.sub(" ", problem))) is None:
                continue
            first, last = (Fraction(number) for number in (match[1], match[match.lastindex or 1]))
            if name in ("product", "power", "sum"):
                gold = str(first * last if name == "product" else first**last if name == "power" else first + last)
            elif name in ("fraction", "slashed"):
                gold = str(float(first / last)) if 10**4 % (first / last).denominator == 0 else ""
            else:
                value = first / (100 if name == "percentage" else 1)
                gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else ""
            if gold and len(listed := found.setdefault(name, [])) < COPIES:
                response = RESPONSES[len(listed) % len(RESPONSES)].format(match[0])
                listed.append((name, Question(gold, [response], [False], problem=problem)))
    return [copy for listed in found.values() for copy in listed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=0, help="list that many of those that are accepted")
    options = parser.parse_args()
    print("|inputs|all|accepted|\n|---|--:|--:|")
    for name, rows in (("hedges", list_hedges()), ("copies of the question's number", list_copies())):
        accepted = [(form, row) for form, row in rows if judge_samples(row).samples[0].outcome == "correct"]
        print(f"|{name}|{len(rows)}|{len(accepted)}|")
        for form, times in Counter(form for form, _ in accepted).most_common():
            print(f"|  {form}||{times}|")
        for _, row in accepted[: options.show]:
            print(f"    gold {row.gold!r}: {row.responses[0]!r}")


if __name__ == "__main__":
    main()
