"""How often is a right answer refused, or a wrong one accepted? Ours beside stock math_verify, in one table.

    python benchmarks/reading_answers.py [--kinds] [--show N] [--half even|odd] [--golds] [--write]

Inputs: texts without a box that real models wrote (GSM8K solutions without their answer line), MATH-500's solutions with each
`\\boxed{X}` replaced by `X`, right and against the answer of the next problem, small inputs made from public bug reports, and the
verdicts that the tests hold. `--golds` adds the gold answers of the seven benchmarks in many forms, and near misses of them (set
HF_ENDPOINT for a mirror). `--kinds` prints a row for each kind of report. `--half` takes the problems of even or odd number only.
`--show` lists that many of our misses. `--write` only writes the table of reports by kind in docs/verification.md.
"""

import argparse
import json
import logging
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lm_eval_takeover.answers.extraction import find_boxes, read_answer
from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.samples import Kind, Question, Verifier
from lm_eval_takeover.answers.verification import verify

SHARED = Path(__file__).parents[2] / "shared"
PAGE = Path(__file__).parents[1] / "docs/verification.md"
TABLE = Path(__file__).parents[1] / "tests/helpers/data/verdicts.jsonl"
VERIFIERS: tuple[Verifier, ...] = ("takeover", "math_verify")
LAST_NUMBER = "last_number"  # what simple scorers read
NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+")
HOSTILE = "answer is " * 800 + "$1$, " * 800 + "\\boxed{" * 800


class Text(NamedTuple):
    text: str
    gold: str
    right: bool
    kind: Kind = "math"
    group: str = ""
    tolerance: float = 0.0


def open_boxes(solution: str) -> str:
    """The solution with each box replaced by what it holds."""
    for start, end, content in reversed(find_boxes(solution)[0]):
        solution = solution[:start] + content + solution[end:]
    return solution


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def load_texts(half: str) -> list[Text]:
    rows = read_lines(SHARED / "answers/gsm8k_solutions.jsonl")
    return [Text(row["text"], row["gold"], bool(row["right"])) for row in rows if _is_in(half, int(row["doc"]))]


def load_math(half: str) -> list[Text]:
    rows = read_lines(SHARED / "hub/datasets/HuggingFaceH4/MATH-500/test.jsonl")
    texts = []
    for number, row in enumerate(rows):
        if _is_in(half, number):
            opened, other = open_boxes(row["solution"]), rows[(number + 1) % len(rows)]["answer"]
            texts.append(Text(opened, row["answer"], True))
            if verify(other, row["answer"]) != "correct":
                texts.append(Text(opened, other, False))
    return texts


def load_reports(half: str) -> list[Text]:
    texts = []
    for row in read_lines(SHARED / "reports/cases.jsonl") + read_lines(SHARED / "reports/cases_2.jsonl"):
        room, _, group = row["kind"].partition("/")
        if room in ("answer", "letter"):
            case: dict[str, str] = row["input"]  # type: ignore[assignment]
            kind: Kind = "letters" if "letter" in (room, group) else "math"
            texts.append(
                Text(case["response"], case["gold"], row["expected"] == "correct", kind, row["kind"].removeprefix("answer/"))
            )
    return texts


def load_table(half: str) -> list[Text]:
    boxed = (Text(f"\\boxed{{{row['answer']}}}", row["gold"], bool(row["correct"])) for row in read_lines(TABLE))
    return [text for text in boxed if read_answer(text.text).answer is not None]


def load_golds(half: str) -> list[Text]:
    from gold_forms import list_cases

    from lm_eval_takeover.tasks.sampled import load_named_tasks

    tasks = load_named_tasks(["takeover_math"]).values()
    cases = (case for task in tasks for case in list_cases(list(task.test_docs())))
    return list(dict.fromkeys(Text(response, gold, right, tolerance=tolerance) for gold, response, tolerance, right in cases))


def _is_in(half: str, number: int) -> bool:
    return half == "all" or number % 2 == (half == "odd")


def decide(judge: Judge, verifier: str, row: Text) -> bool:
    if verifier == LAST_NUMBER:
        row = row._replace(text=next(reversed(NUMBER.findall(row.text)), ""), kind="answer")
    by: Verifier = "math_verify" if verifier == "math_verify" else "takeover"
    question = Question(row.gold, [row.text], [False], row.kind, row.tolerance, by)
    return judge.judge_samples(question).samples[0].outcome == "correct"


def count(rows: Sequence[Text], decided: Sequence[bool]) -> str:
    """`right ones refused | wrong ones accepted` of one verifier."""
    pairs = list(zip(rows, decided, strict=True))
    refused = sum(row.right and not correct for row, correct in pairs)
    return f"{refused}|{sum(correct and not row.right for row, correct in pairs)}"


def write_kinds() -> None:
    """The table in docs/verification.md: a row for each kind of report of which one of the two misjudges an input."""
    rows = load_reports("all")
    with Judge() as judge:
        ours, stock = (list(judge.map(partial(decide, judge, verifier), rows)) for verifier in VERIFIERS[:2])
    lines = ["|kind|right|wrong|ours: refused|accepted|math_verify: refused|accepted|", "|---|" + "--:|" * 6]
    rest = 0
    for group in sorted({row.group for row in rows}):
        kept = [place for place, row in enumerate(rows) if row.group == group]
        chosen = [rows[place] for place in kept]
        cells = [count(chosen, [column[place] for place in kept]) for column in (ours, stock)]
        right = sum(row.right for row in chosen)
        if cells == ["0|0", "0|0"]:
            rest += 1
        else:
            lines.append(f"|{group}|{right}|{len(chosen) - right}|{cells[0]}|{cells[1]}|")
    right = sum(row.right for row in rows)
    lines.append(f"|all, with {rest} kinds more|{right}|{len(rows) - right}|{count(rows, ours)}|{count(rows, stock)}|")
    start, end = "<!-- written by benchmarks/reading_answers.py --write -->\n", "\n<!-- end -->"
    before, _, after = PAGE.read_text(encoding="utf-8").partition(start)
    PAGE.write_text(before + start + "\n".join(lines) + end + after.partition(end)[2], encoding="utf-8")


def time_reading(text: str) -> Iterator[float]:
    """Milliseconds to read and judge a response."""
    for _ in range(5):
        start = time.perf_counter()
        verify(r"3\sqrt{13}", read_answer(text).answer or "")
        yield 1000 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("all", "even", "odd"), default="all")
    parser.add_argument("--show", type=int, default=0)
    parser.add_argument("--kinds", action="store_true")
    parser.add_argument("--golds", action="store_true")
    parser.add_argument("--ours", action="store_true", help="leave the two other verifiers out")
    parser.add_argument("--write", action="store_true", help="the table by kind of report in docs/verification.md")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.write:
        write_kinds()
        return
    verifiers = VERIFIERS[:1] if options.ours else (*VERIFIERS, LAST_NUMBER)
    print("|inputs|right|wrong|" + "|".join(f"{name}: refused|accepted" for name in verifiers) + "|")
    print("|---|" + "--:|" * (2 + 2 * len(verifiers)), flush=True)
    sources = {"GSM8K solutions": load_texts, "MATH-500 solutions": load_math, "reports": load_reports, "tests": load_table}
    misses = []
    with Judge() as judge:
        for name, load in (sources | ({"golds": load_golds} if options.golds else {})).items():
            rows = load(options.half)
            decided = [list(judge.map(partial(decide, judge, verifier), rows)) for verifier in verifiers]
            misses += [row for row, correct in zip(rows, decided[0], strict=True) if correct is not row.right]
            for group in ["", *sorted({row.group for row in rows} - {""})] if options.kinds else [""]:
                kept = [place for place, row in enumerate(rows) if group in ("", row.group)]
                chosen = [rows[place] for place in kept]
                cells = "|".join(count(chosen, [column[place] for place in kept]) for column in decided)
                right = sum(row.right for row in chosen)
                print(f"|{name} {group}|{right}|{len(chosen) - right}|{cells}|", flush=True)
    long = "We add $a_1 + a_2 = 12$ and divide by 3, so 4 apples are left.\n" * 275
    for name, text in (("long", long), ("hostile", HOSTILE)):
        print(f"{name} response, {len(text):,} characters: {min(time_reading(text)):.1f} ms")
    for row in misses[: options.show]:
        read = read_answer(row.text).answer
        print(f"\n{'right' if row.right else 'wrong'}: gold {row.gold!r}, read {read!r}\n  …{row.text[-300:]!r}")


if __name__ == "__main__":
    main()
