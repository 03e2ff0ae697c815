"""What the task files under `task_configs/` call: documents in one shape, subsets, and the scoring of all their samples.

lm-eval hands `process_results` one document at a time, so the work is done before it, in a filter over all responses that uses
every core; `process_results` only hands the metrics on.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Any

import datasets
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from lm_eval_takeover import demo
from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.normalisation import tidy
from lm_eval_takeover.answers.samples import Kind
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.storage.package_data import data_folder
from lm_eval_takeover.tasks.metrics import Scored, score_samples
from lm_eval_takeover.tasks.verdict_log import LoggedVerdict, get_verdict_log
from lm_eval_takeover.tasks.verifiers import get_verifier

Document = dict[str, Any]
_log = logging.getLogger(__name__)

SUBSET_SEED = "takeover_paper"
_SHOWN = 500  # characters of an answer in logged samples


class Record(list[list[str]]):
    """What lm-eval logs of one document under `filtered_resps`: `[answer, outcome]` of each sample; its metrics beside it.

    A list, since lm-eval writes lists as such and turns everything else into a string.
    """

    def __init__(self, scored: Scored):
        answers = ((answer or "")[:_SHOWN] for answer in scored.answers)
        super().__init__([answer, outcome] for answer, outcome in zip(answers, scored.outcomes, strict=True))
        self.metrics = scored.metrics


def score_all(resps: Sequence[Sequence[str]], docs: Sequence[Document]) -> list[Record]:
    """A filter: all samples of all documents judged."""
    return _score(resps, docs, "math")


def score_letters(resps: Sequence[Sequence[str]], docs: Sequence[Document]) -> list[Record]:
    """The filter for multiple-choice questions: letters are equal or not."""
    return _score(resps, docs, "letters")


def _score(resps: Sequence[Sequence[str]], docs: Sequence[Document], kind: Kind) -> list[Record]:
    verifier = get_verifier()
    with Judge() as judge:

        def score(item: tuple[Sequence[str], Document]) -> Scored:
            responses, doc = item
            tolerance = float(doc.get("tolerance") or 0)
            return score_samples(str(doc["answer"]), responses, judge.judge_samples, kind, tolerance, verifier)

        return _log_verdicts(judge.map(score, zip(resps, docs, strict=True)), resps, docs)


def process_results(doc: Document, results: Sequence[Record]) -> dict[str, float | tuple[int, int]]:
    """The metrics of one document, which the filter has computed."""
    (record,) = results
    return record.metrics


def _log_verdicts(scored: Iterable[Scored], resps: Sequence[Sequence[str]], docs: Sequence[Document]) -> list[Record]:
    """The scores as lm-eval logs them; the verdict log, where there is one, gets the verdicts."""
    problems = list(tqdm(scored, total=len(docs), desc="Verifying answers", delay=5))
    if (log := get_verdict_log()) is not None:
        log.add_verdicts(list_verdicts(problems, resps, docs))
    return [Record(problem) for problem in problems]


def list_verdicts(
    scored: Sequence[Scored], resps: Sequence[Sequence[str]], docs: Sequence[Document]
) -> Iterator[LoggedVerdict]:
    """What each response was worth."""
    for problem, responses, doc in zip(scored, resps, docs, strict=True):
        digest = digest_of(doc)
        for response, answer, outcome in zip(responses, problem.answers, problem.outcomes, strict=True):
            yield LoggedVerdict(digest, digest_of_text(response), answer, outcome)


def _convert_rows(dataset: datasets.Dataset, convert: Callable[[Document], Document]) -> datasets.Dataset:
    """Every row as `problem`, `answer` and what else `convert` gives. Not by `map`, which keeps the types of old columns."""
    return datasets.Dataset.from_list([convert(row) for row in dataset])


def process_math500(dataset: datasets.Dataset) -> datasets.Dataset:
    """As it is, without the worked solution, which would double the logs."""
    return dataset.remove_columns("solution")


def process_gsm8k(dataset: datasets.Dataset) -> datasets.Dataset:
    """The gold answer is what follows `####`."""
    return _convert_rows(
        dataset,
        lambda row: {
            "problem": row["question"],
            "answer": row["answer"].rpartition("####")[2].strip().replace(",", ""),
        },
    )


def _convert_integers(dataset: datasets.Dataset, problem: str, answer: str, identifier: str) -> datasets.Dataset:
    """Problems whose answers are integers, which copies of these sets also write as `27.0` or `033`."""

    def convert(row: Document) -> Document:
        return {"problem": row[problem], "answer": str(int(float(row[answer]))), "id": str(row[identifier])}

    return _convert_rows(dataset, convert)


def process_amc23(dataset: datasets.Dataset) -> datasets.Dataset:
    """Answers are integers, as strings."""
    return _convert_integers(dataset, "question", "answer", "id")


def process_aime24(dataset: datasets.Dataset) -> datasets.Dataset:
    """Answers are integers from 0 to 999."""
    return _convert_integers(dataset, "Problem", "Answer", "ID")


def process_aime25(dataset: datasets.Dataset) -> datasets.Dataset:
    """As AIME 2024. AIME 2026 has the same columns."""
    return _convert_integers(dataset, "problem", "answer", "id")


def process_hmmt(dataset: datasets.Dataset) -> datasets.Dataset:
    """MathArena's columns. Answers are LaTeX, or a list of answers separated by commas."""
    return _convert_rows(
        dataset,
        lambda row: {"problem": row["problem"], "answer": str(row["answer"]).strip(), "id": str(row["problem_idx"])},
    )


# Two gold answers of OlympiadBench's release are misprinted.
_MISPRINTS = {"$t(0,4]$": "$(0,4]$", "$221,$8$": "$221$,$8$"}


def process_olympiadbench(dataset: datasets.Dataset) -> datasets.Dataset:
    """Gold answers with their unit; several answers are one list, to be matched as a set; `error` is the tolerance."""

    def convert(row: Document) -> Document:
        answer = ", ".join(_MISPRINTS.get(answer, answer) for answer in row["final_answer"])
        unit = tidy(row["unit"] or "")
        if unit and not row["is_multiple_answer"]:
            answer = f"{tidy(answer)}{unit}" if unit in ("°", "%") else rf"{tidy(answer)}\text{{ {unit}}}"
        return {
            "problem": row["question"] if not row["context"] else f"{row['context']}\n{row['question']}",
            "answer": answer,
            "tolerance": float(row["error"] or 0),
            "id": str(row["id"]),
            "subfield": row["subfield"],
        }

    return _convert_rows(dataset, convert)


def _draw_subset(dataset: datasets.Dataset, size: int) -> datasets.Dataset:
    """`size` rows in their order, drawn by a hash of the problem: the same on every machine, whatever the order of rows."""
    digests = [blake2b(f"{SUBSET_SEED}\n{problem}".encode(), digest_size=16).digest() for problem in dataset["problem"]]
    return dataset.select(sorted(sorted(range(len(dataset)), key=digests.__getitem__)[:size]))


def process_math500_paper(dataset: datasets.Dataset) -> datasets.Dataset:
    """100 problems, the size of the paper's evaluation."""
    return _draw_subset(process_math500(dataset), 100)


def process_gsm8k_paper(dataset: datasets.Dataset) -> datasets.Dataset:
    """100 problems, the size of the paper's evaluation."""
    return _draw_subset(process_gsm8k(dataset), 100)


def process_olympiadbench_paper(dataset: datasets.Dataset) -> datasets.Dataset:
    """100 problems, the size of the paper's evaluation."""
    return _draw_subset(process_olympiadbench(dataset), 100)


def process_gpqa(dataset: datasets.Dataset) -> datasets.Dataset:
    """The four choices in an order that a hash of the question and the choice decides, and the letter of the right one."""

    def convert(row: Document) -> Document:
        question = row["Question"].strip()
        right = _collapse_spaces(row["Correct Answer"])
        choices = [right, *(_collapse_spaces(row[f"Incorrect Answer {number}"]) for number in (1, 2, 3))]
        choices.sort(key=lambda choice: blake2b(f"{question}\n{choice}".encode(), digest_size=16).digest())
        return {
            "problem": question,
            "choices": choices,
            "answer": "ABCD"[choices.index(right)],
            "id": row["Record ID"],
            "canary": row["Canary String"],
        }

    return _convert_rows(dataset, convert)


def process_gpqa_paper(dataset: datasets.Dataset) -> datasets.Dataset:
    """50 questions, the size of the paper's evaluation."""
    return _draw_subset(process_gpqa(dataset), 50)


def _collapse_spaces(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def load_demo(**_: Any) -> dict[str, datasets.Dataset]:
    """The 200 packaged puzzles, without the data set cache."""
    return {"test": datasets.Dataset.from_list(demo.problems())}


def load_tasks(*names: str) -> dict[str, Any]:
    """These tasks, and those of these groups, as lm-eval makes them of `task_configs/`: by name, in their order."""
    manager = TaskManager(include_path=str(data_folder("task_configs")), include_defaults=False)
    return dict(manager.load(list(names))["tasks"])
