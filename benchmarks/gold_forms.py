"""Does every gold answer verify when written as a model would write it, and fail when it is nearly right?

    python benchmarks/gold_forms.py [--show]

Reads the seven data sets through `datasets` (set HF_ENDPOINT for a mirror), and prints per benchmark: golds, forms tried,
golds that some form of themselves does not verify against (the goal is 0), and near misses that were accepted. `--show` lists
them.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction

from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.letters import read_letter
from lm_eval_takeover.answers.normalisation import parse_rational, split_brackets, split_elements, split_unit, tidy
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.tasks.benchmarks import Document
from lm_eval_takeover.tasks.sampled import load_named_tasks


def forms(gold: str) -> Iterator[str]:
    """Responses that state `gold`: boxed, inline, display, plain, in prose, with and without its unit, of equal value."""
    text = gold.replace("$", "").rstrip(".") if "\\$" not in gold else gold
    yield f"We add both sides.\n\nThus the answer is $\\boxed{{{text}}}$."
    yield f"So \\[ \\boxed{{{text}}} \\] which is what we wanted. I hope it is correct."
    yield f"The final answer is ${text}$."
    yield f"Let us compute.\n\n**Answer:** \\({text}\\)"
    yield f"First we simplify.\nTherefore we get\n\\[ {text} \\]"
    yield f"Answer: {text}"
    yield text
    yield (f"\\boxed{{{text.replace(chr(92) + 'frac', chr(92) + 'dfrac').replace(' ', '')}}}" if "\\text" not in text else text)
    value, unit = split_unit(tidy(gold))
    number = parse_rational(value.removesuffix("°").removesuffix("%"))
    parts = split_elements(tidy(gold))
    if unit:
        yield f"\\boxed{{{value}}}"
    if len(parts) > 1:
        yield f"\\boxed{{{', '.join(reversed(parts))}}}"
        yield " and ".join(f"$\\boxed{{{part}}}$" for part in parts)
    if number is None or value.endswith(("°", "%")):
        return
    if not unit:
        yield f"She has \\boxed{{{value}\\text{{ units}}}} left."
        yield f"\\boxed{{x = {value}}}"
    if number.denominator == 1:
        yield f"\\boxed{{{int(number)}.0}}"
        yield f"\\boxed{{{int(number):,}}}"
        yield f"It is \\boxed{{\\frac{{{2 * int(number)}}}{{2}}}}."
    else:
        sign, size = "-" if number < 0 else "", abs(number)
        yield f"\\boxed{{{number.numerator}/{number.denominator}}}"
        yield f"\\boxed{{{sign}\\frac{{{size.numerator}}}{{{size.denominator}}}}}"
        if 10**20 % number.denominator == 0:  # the decimal ends
            yield f"\\boxed{{{float(number)!r}}}"


def near_misses(gold: str) -> Iterator[str]:
    """Answers that are nearly `gold` and wrong."""
    text = tidy(gold)
    value, _ = split_unit(text)
    number = parse_rational(value.removesuffix("°").removesuffix("%"))
    parts, group = split_elements(text), split_brackets(text)
    if number is not None:
        yield str(number + 1)
        yield f"{number * 1000 + 1}/1000"
        if number:
            yield str(-number)
            yield str(number * Fraction(10001, 10000))
    elif len(set(parts)) > 1:
        yield ", ".join(part for part in parts if part != parts[0])
        yield f"{', '.join(parts)}, 987654"
    elif group and group[1][0] != group[1][-1]:
        yield f"{group[0]}{', '.join(reversed(group[1]))}{group[2]}"
        if len(group[1]) == 2:
            yield f"{'[' if group[0] == '(' else '('}{', '.join(group[1])}{group[2]}"
    elif re.fullmatch(r"\\text\{.*\}", text):
        yield r"\text{none of these}"
        yield "A" if "A" not in text else "B"
    elif "=" not in text and "\\le" not in text and "\\ge" not in text and "matrix" not in text and "\\in" not in text:
        yield f"{text} + 1"
        yield f"2 \\cdot ({text})"
        yield f"-({text})"


def list_cases(docs: Sequence[Document], letters: bool = False) -> list[tuple[str, str, float, bool]]:
    """`(gold, response, tolerance, whether it is right)` for each form and near miss."""
    cases = []
    for doc in docs:
        gold, tolerance = str(doc["answer"]), float(str(doc.get("tolerance") or 0))
        if letters:
            responses = [
                f"\\boxed{{{gold}}}",
                f"\\boxed{{\\text{{{gold}}}}}",
                f"The answer is ({gold}).",
                gold,
                f"**Answer:** {gold}",
            ]
            wrong = [f"\\boxed{{{other}}}" for other in "ABCD" if other != gold]
        else:
            responses = list(forms(gold))
            wrong = [f"\\boxed{{{miss}}}" for miss in near_misses(gold)] if not tolerance else []
        cases += [(gold, response, tolerance, True) for response in responses]
        cases += [(gold, response, tolerance, False) for response in wrong]
    return cases


def check(
    name: str, docs: Sequence[Document], judge: Judge
) -> tuple[int, int, int, list[tuple[str, str]], list[tuple[str, str]]]:
    """`(golds, forms, near misses, forms that failed, near misses that were accepted)` of one benchmark."""
    cases = list_cases(docs, name == "gpqa_diamond")

    def verdict(case: tuple[str, str, float, bool]) -> bool:
        gold, response, tolerance, _ = case
        answer = read_letter(response).answer if name == "gpqa_diamond" else read_answer(response).answer
        if answer is None:
            return False
        return gold == answer if name == "gpqa_diamond" else judge(gold, answer, tolerance) == "correct"

    verdicts = list(judge.map(verdict, cases))
    failed = [case[:2] for case, correct in zip(cases, verdicts, strict=True) if case[3] and not correct]
    accepted = [case[:2] for case, correct in zip(cases, verdicts, strict=True) if not case[3] and correct]
    right = sum(case[3] for case in cases)
    return len(docs), right, len(cases) - right, failed, accepted


def main() -> None:
    print("|benchmark|golds|forms|golds not verified|near misses|accepted|\n|---|--:|--:|--:|--:|--:|")
    for task_name, task in load_named_tasks(["takeover_math", "takeover_gpqa_diamond"]).items():
        name = task_name.removeprefix("takeover_")
        with Judge() as judge:
            golds, tried, misses, failed, accepted = check(name, list(task.test_docs()), judge)
        print(f"|{name}|{golds}|{tried}|{len({gold for gold, _ in failed})}|{misses}|{len(accepted)}|")
        if "--show" in sys.argv:
            for label, cases in (("not verified", failed), ("accepted", accepted)):
                for gold, response in cases:
                    print(f"    {label}: {gold!r} as {response!r}")


if __name__ == "__main__":
    main()
