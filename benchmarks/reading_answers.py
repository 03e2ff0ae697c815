"""How often is a right answer refused, or a wrong one accepted? Ours beside stock math_verify, in one table.

    python benchmarks/reading_answers.py [--kinds] [--show N] [--half even|odd] [--golds] [--rules] [--write]

Inputs: responses of base models and of base models under steering, labelled, by model and by whether they have a box; GSM8K
solutions of fine-tuned models without their answer line; MATH-500's solutions with each `\\boxed{X}` replaced by `X`, right and
against the answer of the next problem; small inputs made from public bug reports; and the verdicts that the tests hold. `--golds`
adds the gold answers of the seven benchmarks in many forms, and near misses of them (set HF_ENDPOINT for a mirror). `--kinds`
prints a row for each kind of report. `--half` takes the problems of even or odd number only. `--show` lists that many of our
misses. `--rules` prints what each rule of reading gains and loses. `--write` writes the tables of rules and of reports by kind in
docs/verification.md, and the shares of refused right answers that tables use (lm_eval_takeover/results/ruler.json).
"""

import argparse
import gzip
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from lm_eval_takeover.answers import reading
from lm_eval_takeover.answers.boxes import find_boxes
from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.answers.samples import AnswerKind, Question, Verifier, judge_samples
from lm_eval_takeover.answers.sentences import Sentence
from lm_eval_takeover.answers.verification import verify

SHARED = Path(__file__).parents[2] / "shared"
Rule = Callable[[Sentence], str | None]
PAGE = Path(__file__).parents[1] / "docs/verification.md"
TABLE = Path(__file__).parents[1] / "tests/helpers/data/verdicts.jsonl"
REPORTS = ("cases", "cases_2", "cases_3")
RULER = Path(__file__).parents[1] / "lm_eval_takeover/results/ruler.json"
VERIFIERS: tuple[Verifier, ...] = ("takeover", "math_verify")
LAST_NUMBER = "last_number"  # what simple scorers read
NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+")
HOSTILE = "answer is " * 800 + "$1$, " * 800 + "\\boxed{" * 800


class Text(NamedTuple):
    text: str
    gold: str
    right: bool
    kind: AnswerKind = "math"
    group: str = ""
    tolerance: float = 0.0
    problem: str = ""
    source: str = ""


def open_boxes(solution: str) -> str:
    """The solution with each box replaced by what it holds."""
    for start, end, content in reversed(find_boxes(solution)[0]):
        solution = solution[:start] + content + solution[end:]
    return solution


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def load_bases(half: str) -> list[Text]:
    """Responses of base models. A right one that other text follows is right."""
    path = SHARED / "answers/base_texts.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()).splitlines() if path.exists() else []
    texts = []
    for row in map(json.loads, lines):
        model, _, number = row["source"].rpartition("/")
        if _is_in(half, int(number)):
            group = f"{model}, {'box' if read_answer(row['text']).boxed else 'no box'}"
            right = row["label"] in ("right", "runon")
            texts.append(Text(row["text"], row["gold"], right, group=group, problem=row["problem"], source=row["source"]))
    return texts


def load_texts(half: str) -> list[Text]:
    rows = read_lines(SHARED / "answers/gsm8k_solutions.jsonl")
    path = SHARED / "hub/datasets/openai/gsm8k/main/test-00000-of-00001.parquet"
    asked = pq.read_table(path)["question"].to_pylist() if rows else []
    return [
        Text(row["text"], row["gold"], bool(row["right"]), problem=asked[int(row["doc"])])
        for row in rows
        if _is_in(half, int(row["doc"]))
    ]


def load_math(half: str) -> list[Text]:
    rows = read_lines(SHARED / "hub/datasets/HuggingFaceH4/MATH-500/test.jsonl")
    texts = []
    for number, row in enumerate(rows):
        if _is_in(half, number):
            opened, other = open_boxes(row["solution"]), rows[(number + 1) % len(rows)]["answer"]
            texts.append(Text(opened, row["answer"], True, problem=row["problem"]))
            if verify(other, row["answer"]) != "correct":
                texts.append(Text(opened, other, False, problem=row["problem"]))
    return texts


def load_reports(half: str) -> list[Text]:
    texts = []
    for row in (row for name in REPORTS for row in read_lines(SHARED / f"reports/{name}.jsonl")):
        room, _, group = row["kind"].partition("/")
        if room in ("answer", "letter"):
            case: dict[str, str] = row["input"]  # type: ignore[assignment]
            kind: AnswerKind = "letters" if "letter" in (room, group) else "math"
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
    question = Question(row.gold, [row.text], [False], row.kind, row.tolerance, by, row.problem)
    return judge.judge_samples(question).samples[0].outcome == "correct"


def count(rows: Sequence[Text], decided: Sequence[bool]) -> str:
    """`right ones refused | wrong ones accepted` of one verifier."""
    pairs = list(zip(rows, decided, strict=True))
    refused = sum(row.right and not correct for row, correct in pairs)
    return f"{refused}|{sum(correct and not row.right for row, correct in pairs)}"


def measure_rules() -> list[str]:
    """A table of the rules: of texts without a box, right ones that a rule reads or loses, and wrong ones that it accepts."""
    loads = (load_bases, load_texts, load_math, load_reports)
    rows = [row for load in loads for row in load("all") if row.kind == "math" and not read_answer(row.text).boxed]
    rules = reading.RULES

    def decide_all(kept: tuple[Rule, ...]) -> list[bool]:
        reading.RULES = kept
        asked = (Question(row.gold, [row.text], [False], problem=row.problem) for row in rows)
        return [judge_samples(question).samples[0].outcome == "correct" for question in asked]

    whole = decide_all(rules)
    lines = ["|rule|reads|gains|loses|accepts wrong ones|", "|---|---|--:|--:|--:|"]
    for rule in rules:
        changed = [
            (row.right, now) for row, now, was in zip(rows, whole, decide_all(_drop(rules, rule)), strict=True) if now != was
        ]
        counts = [changed.count(pair) for pair in ((True, True), (True, False), (False, True))]
        says = (rule.__doc__ or "").partition("\n")[0].rstrip(".")
        lines.append(f"|`{rule.__name__}`|{says}|" + "|".join(map(str, counts)) + "|")
    reading.RULES = rules
    return lines


def _drop(rules: tuple[Rule, ...], rule: Rule) -> tuple[Rule, ...]:
    return tuple(other for other in rules if other is not rule)


def write_shares() -> None:
    """Right answers and refused ones of base models, with a box and without, in the package."""
    rows = load_bases("all")
    shares: dict[str, object] = {
        "source": "responses of Qwen2.5-14B and -32B to GSM8K and MATH-500, alone and steered (arXiv 2510.07364), labelled",
    }
    with Judge() as judge:
        decided = list(judge.map(partial(decide, judge, "takeover"), rows))
    for name, end in (("boxed", ", box"), ("unboxed", ", no box")):
        right = [correct for row, correct in zip(rows, decided, strict=True) if row.right and row.group.endswith(end)]
        shares[name] = {"right": len(right), "refused": right.count(False)}
    RULER.write_text(json.dumps(shares, indent=1) + "\n", encoding="utf-8")


def write_table(name: str, lines: Sequence[str]) -> None:
    """Put a table in its place in docs/verification.md."""
    start, end = f"<!-- {name}: written by benchmarks/reading_answers.py --write -->\n", "<!-- end -->"
    before, _, after = PAGE.read_text(encoding="utf-8").partition(start)
    PAGE.write_text(before + start + "\n".join([*lines, ""]) + end + after.partition(end)[2], encoding="utf-8")


def list_kinds() -> list[str]:
    """A table with a row for each kind of report of which one of the two misjudges an input."""
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
    return lines


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
    parser.add_argument("--rules", action="store_true", help="what each rule of reading gains and loses")
    parser.add_argument("--write", action="store_true", help="the tables in docs/verification.md, and the package's shares")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if options.rules:
        print("\n".join(measure_rules()))
        return
    if options.write:
        write_table("rules", measure_rules())
        write_table("reports", list_kinds())
        write_shares()
        return
    verifiers = VERIFIERS[:1] if options.ours else (*VERIFIERS, LAST_NUMBER)
    print("|inputs|right|wrong|" + "|".join(f"{name}: refused|accepted" for name in verifiers) + "|")
    print("|---|" + "--:|" * (2 + 2 * len(verifiers)), flush=True)
    sources = {
        "base models": load_bases,
        "GSM8K solutions": load_texts,
        "MATH-500 solutions": load_math,
        "reports": load_reports,
        "tests": load_table,
    }
    misses = []
    with Judge() as judge:
        for name, load in (sources | ({"golds": load_golds} if options.golds else {})).items():
            rows = load(options.half)
            decided = [list(judge.map(partial(decide, judge, verifier), rows)) for verifier in verifiers]
            misses += [row for row, correct in zip(rows, decided[0], strict=True) if correct is not row.right]
            by_group = options.kinds or load is load_bases
            for group in ["", *sorted({row.group for row in rows} - {""})] if by_group else [""]:
                kept = [place for place, row in enumerate(rows) if group in ("", row.group)]
                chosen = [rows[place] for place in kept]
                cells = "|".join(count(chosen, [column[place] for place in kept]) for column in decided)
                right = sum(row.right for row in chosen)
                print(f"|{name} {group}|{right}|{len(chosen) - right}|{cells}|", flush=True)
    long = "We add $a_1 + a_2 = 12$ and divide by 3, so 4 apples are left.\n" * 275
    for name, text in (("long", long), ("hostile", HOSTILE)):
        print(f"{name} response, {len(text):,} characters: {min(time_reading(text)):.1f} ms")
    for row in misses[: options.show]:
        read = read_answer(row.text, problem=row.problem).answer
        print(f"\n{row.source} {'right' if row.right else 'wrong'}: gold {row.gold!r}, read {read!r}\n  …{row.text[-300:]!r}")


if __name__ == "__main__":
    main()
