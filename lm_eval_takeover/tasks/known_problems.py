"""Which texts are problems of a benchmark, by digests of their words; those of GPQA are read from the Hub, with a token.

Calibration prompts must not be test problems. A calibration that was measured on some (`--diagnostic`) is refused for these.
"""

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any, Self

from lm_eval_takeover import demo
from lm_eval_takeover.errors import CalibrationError

DIGESTS = Path(__file__).parent / "known_problems.json"
_FIRST = 6  # words by which a problem is found inside a longer text


def words(text: str) -> list[str]:
    """Normalised text: compatibility forms folded, lower case, words and numbers alone."""
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def _digest(listed: Sequence[str], size: int) -> str:
    return hashlib.blake2b(" ".join(listed).encode(), digest_size=size).hexdigest()


def problem_digest(problem: str) -> str:
    """`words first whole`: how many words, and digests of the first six and of all of them."""
    listed = words(problem)
    return f"{len(listed)} {_digest(listed[:_FIRST], 4)} {_digest(listed, 8)}"


def _find_template(prompts: Collection[str]) -> tuple[list[str], list[str]]:
    """The words that all prompts begin with, and those that they end with: their template's. None of one prompt alone."""
    listed = [words(prompt) for prompt in set(prompts)]
    if len(listed) < 2:
        return [], []
    before, after = (commonprefix([each[::step] for each in listed]) for step in (1, -1))  # noqa: RUF071
    return list(before), list(after)[::-1]


def strip_template(prompts: Sequence[str]) -> list[str]:
    """The words of each prompt, without those of their template."""
    before, after = _find_template(prompts)
    listed = [words(prompt)[len(before) :] for prompt in prompts]
    return [" ".join(each[: max(len(each) - len(after), 0)]) for each in listed]


def digest_template(prompts: Collection[str]) -> list[str]:
    """Of the words before the problem and of those behind it: how many, and their digest."""
    return [f"{len(part)} {_digest(part, 8)}" for part in _find_template(prompts)]


def has_template(prompt: str, template: Sequence[str]) -> bool:
    """Whether a prompt begins and ends with the words of a template, given as `digest_template` has it."""
    listed = words(prompt)
    (before, first), (after, last) = (part.split() for part in template)
    ends = listed[: int(before)], listed[len(listed) - int(after) :]
    return [_digest(part, 8) for part in ends] == [first, last]


class KnownProblems:
    """Problems by the name of their benchmark, given as digests."""

    def __init__(self, listed: Mapping[str, Collection[str]]) -> None:
        self._by_first: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
        self._whole: dict[str, str] = {}
        self.benchmarks = [name for name, digests in listed.items() if digests]
        for benchmark in self.benchmarks:
            for digest in listed[benchmark]:
                size, first, whole = digest.split()
                self._whole[whole] = benchmark
                if int(size) >= _FIRST:
                    self._by_first[first].append((int(size), whole, benchmark))

    @classmethod
    def load(cls, only: Collection[str] | None = None, **others: Collection[str]) -> Self:
        """The problems of the benchmarks, those of `only` where it is given, and `others`."""
        listed: dict[str, list[str]] = json.loads(DIGESTS.read_text())
        for task, path in (("takeover_demo", demo.PROBLEMS), ("takeover_demo_graded", demo.GRADED_PROBLEMS)):
            listed[task] = [problem_digest(row["problem"]) for row in demo.problems(path)]
        if only is None or "takeover_gpqa_diamond" in only:
            listed["takeover_gpqa_diamond"] = _read_gpqa_digests()
        return cls({name: digests for name, digests in listed.items() if only is None or name in only} | others)

    def held_by(self, text: str, prompt: str) -> str | None:
        """The benchmark of which `text` is a problem or `prompt` contains one."""
        if exact := self._whole.get(_digest(words(text), 8)):
            return exact
        listed = words(prompt)
        for start in range(len(listed) - _FIRST + 1):
            for size, whole, benchmark in self._by_first.get(_digest(listed[start : start + _FIRST], 4), ()):
                if _digest(listed[start : start + size], 8) == whole:
                    return benchmark
        return None


def _read_gpqa_digests() -> list[str]:
    """Digests of GPQA-Diamond, a gated data set. Empty without a Hub token."""
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        return []
    import datasets

    try:
        rows = datasets.load_dataset("Idavidrein/gpqa", "gpqa_diamond", split="train")
    except Exception:  # no access, no network
        return []
    return [problem_digest(row["Question"]) for row in rows]


def refuse_calibrated_tasks(calibration: str, benchmarks: Collection[str], asked: Iterable[tuple[str, str]]) -> None:
    """Raises CalibrationError where a task is of these benchmarks, by its name (also `NAME_100`) or by its problems."""
    if not benchmarks:
        return
    problems = KnownProblems.load(benchmarks)
    for task, prompt in dict.fromkeys(asked):
        named = (name for name in benchmarks if task == name or task.startswith(f"{name}_"))
        if benchmark := next(named, None) or problems.held_by(prompt, prompt):
            raise CalibrationError(
                f"calibration '{calibration}' was measured on problems of {benchmark} (calibrate --diagnostic), and task {task} "
                f"asks them; give one that was measured on others, such as a train split"
            )


def find_calibrated_problem(problems: Collection[str], docs: Iterable[tuple[str, Mapping[str, Any]]]) -> str | None:
    """The label of the first `(label, document)` with a problem among these digests in one of its texts; else None."""
    calibrated = KnownProblems({"calibration": [digest for digest in problems if int(digest.split()[0]) > 2]})
    for label, document in dict(docs).items():
        texts = [value for value in document.values() if isinstance(value, str)]
        if any(calibrated.held_by(text, text) for text in texts):
            return label
    return None
