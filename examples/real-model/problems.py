"""Word problems in plain English with worked solutions, made by rule: `python problems.py OUT` writes one JSONL file per split.

No equation of a split is in another (`a + b` and `b + a` are one), nor are names and things. Two of the six kinds are in the test
split alone.
"""

import json
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

PROMPT = "Problem: {problem}\nPlease reason step by step, and put your final answer within \\boxed{{}}.\nSolution:"
SIZES = {"train1": 600, "train2": 600, "calibration": 160}  # the number of training problems is their seed
NEW_KINDS = ("twice", "passes")  # in the test split alone
NAMES = {
    "train": "Tom Mia Ben Ana Leo Eva Sam Lily Max Nora Paul Ruth Ivan Jane Omar Rosa Hugo Tina Karl Vera",
    "calibration": "Adam Clara Felix Greta Henry Irene Jack Kate",
    "test": "Oscar Julia Peter Sara Simon Emma Victor Alice",
}
THINGS = {
    "train": "apples pencils coins stickers shells cards books plums buttons stamps",
    "calibration": "oranges balls pens cookies",
    "test": "marbles pears keys eggs",
}
# Of each kind: the ranges of a, b and c; two ways to ask; the steps of the solution, whose last one gives the answer.
# `[a + b]` in a step is written as the sum and its value.
KINDS = {
    "more": (
        ((3, 18), (2, 14), (0, 0)),
        ("{x} has {a} {t}. {y} has {b} more {t} than {x}. How many {t} do they have together?",
         "{x} has {a} {t}, and {y} has {b} more than {x}. How many {t} do {x} and {y} have in total?"),
        ("{y} has [{a} + {b}] {t}.", "Together they have [{a} + {last}] {t}."),
    ),
    "fewer": (
        ((8, 24), (2, 12), (0, 0)),
        ("{x} has {a} {t}. {y} has {b} fewer {t} than {x}. How many {t} do they have together?",
         "{x} has {a} {t}, and {y} has {b} fewer than {x}. How many {t} do {x} and {y} have in total?"),
        ("{y} has [{a} - {b}] {t}.", "Together they have [{a} + {last}] {t}."),
    ),
    "twice": (
        ((3, 18), (2, 14), (0, 0)),
        ("{x} has {a} {t}. {y} has twice as many {t} as {x}, but loses {b} of them. How many {t} does {y} have now?",
         "{x} has {a} {t}, and {y} has twice as many. Then {y} loses {b} {t}. How many {t} does {y} have left?"),
        ("{y} has [2 * {a}] {t}.", "Then {y} has [{last} - {b}] {t}."),
    ),
    "before": (
        ((3, 18), (3, 18), (0, 0)),
        ("{x} gives {a} {t} to {y} and has {b} {t} left. How many {t} did {x} have at first?",
         "After giving {a} {t} to {y}, {x} still has {b} {t}. How many {t} did {x} have before?"),
        ("Before, {x} had [{b} + {a}] {t}.",),
    ),
    "boxes": (
        ((2, 6), (3, 12), (2, 9)),
        ("{x} has {a} boxes with {b} {t} in each box. {x} gives {c} {t} to {y}. How many {t} does {x} have left?",
         "There are {b} {t} in each of {a} boxes. {x} takes {c} {t} out and gives them to {y}. "
         "How many {t} are left in the boxes?"),
        ("The boxes have [{a} * {b}] {t}.", "Then [{last} - {c}] {t} are left."),
    ),
    "passes": (
        ((10, 20), (2, 8), (2, 9)),
        ("{x} has {a} {t}. {x} gives {b} {t} to {y}, and then finds {c} more. How many {t} does {x} have now?",
         "{x} had {a} {t}, lost {b} of them, and then got {c} {t} from {y}. How many {t} does {x} have now?"),
        ("First {x} has [{a} - {b}] {t}.", "Then {x} has [{last} + {c}] {t}."),
    ),
}  # fmt: skip


def split_of(equation: str) -> str:
    """The split in whose solutions this equation may stand, by a digest: 5 of 10 in training, 2 in calibration, 3 in test."""
    first, sign, second = equation.split()
    numbers = [first, second] if sign == "-" else sorted([first, second])
    digest = zlib.crc32(repr((sign, *numbers)).encode())
    return ("test", "test", "test", "calibration", "calibration", *["train"] * 5)[digest % 10]


def solve(steps: tuple[str, ...], facts: dict[str, object]) -> tuple[list[str], list[str], int]:
    """The steps with their sums worked out, the left sides of these sums, and the last value."""
    written, equations, last = [], [], 0
    for step in steps:
        before, sum_, after = step.replace("[", "]").split("]")
        equation = sum_.format(**facts, last=last)
        first, sign, second = equation.split()
        a, b = int(first), int(second)
        last = {"+": a + b, "-": a - b, "*": a * b}[sign]
        equations.append(equation)
        written.append(f"{before}{equation} = {last}{after}".format(**facts))
    return written, equations, last


def make_problems(split: str, count: int, seed: int = 1) -> Iterator[dict[str, str]]:
    """Different problems of a split, test problems in numbers too; the kinds take turns."""
    random_ = random.Random(f"{split} {seed}")
    kinds = [kind for kind in KINDS if split == "test" or kind not in NEW_KINDS]
    seen = set[object]()
    while len(seen) < count:
        kind = kinds[len(seen) % len(kinds)]
        ranges, questions, steps = KINDS[kind]
        numbers = tuple(random_.randint(*bounds) for bounds in ranges)
        (x, y), things = random_.sample(NAMES[split].split(), 2), random_.choice(THINGS[split].split())
        facts = {"x": x, "y": y, "t": things, **dict(zip("abc", numbers, strict=True))}
        problem = random_.choice(questions).format(**facts)
        key = (kind, numbers) if split == "test" else problem
        written, equations, answer = solve(steps, facts)
        solution = f"{' '.join(written)} The answer is \\boxed{{{answer}}}."
        if key in seen or answer <= 0 or {split_of(equation) for equation in equations} != {split}:
            continue
        if split == "test" and "= -" in solution:  # a step below 0, as some training problems have
            continue
        seen.add(key)
        yield {"kind": kind, "problem": problem, "solution": solution, "answer": str(answer)}


def load_test(**_: Any) -> dict[str, Any]:
    return {"test": datasets.Dataset.from_list(list(make_problems("test", 80)))}


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, count in SIZES.items():
        split = name.rstrip("12")
        rows = [json.dumps(row) + "\n" for row in make_problems(split, count, seed=int(name[len(split) :] or 1))]
        (out / f"{name}.jsonl").write_text("".join(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
