"""What the task files call: documents in one shape, subsets, and a filter that scores all samples of a task on all cores."""

import functools
import logging
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

import datasets
from tqdm import tqdm

from lm_eval_takeover import demo
from lm_eval_takeover.answers.judging import Judge
from lm_eval_takeover.answers.normalisation import tidy
from lm_eval_takeover.answers.samples import AnswerKind, JudgedSample
from lm_eval_takeover.samples import Verdict
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.tasks.context import find_context
from lm_eval_takeover.tasks.verdicts import Metrics, score_samples

Document = dict[str, Any]
SampleTexts = Sequence[Sequence[str]]  # the samples of each document
ProcessDocs = Callable[[datasets.Dataset], datasets.Dataset]
_log = logging.getLogger(__name__)

SUBSET_SEED = "takeover_paper"
_SHOWN = 500  # characters of an answer in logged samples


class Record(list[list[str]]):
    """`[answer, outcome]` of each sample, and the metrics. A list, since lm-eval logs no other type."""

    def __init__(self, samples: Sequence[JudgedSample], metrics: Metrics):
        super().__init__([(sample.answer or "")[:_SHOWN], sample.outcome] for sample in samples)
        self.metrics = metrics


def score_all(resps: SampleTexts, docs: Sequence[Document]) -> list[Record]:
    """A filter: all samples of all documents judged."""
    return _score(resps, docs, "math")


def score_letters(resps: SampleTexts, docs: Sequence[Document]) -> list[Record]:
    """The filter for multiple-choice questions: letters are equal or not."""
    return _score(resps, docs, "letters")


def _score(resps: SampleTexts, docs: Sequence[Document], kind: AnswerKind) -> list[Record]:
    run = find_context(chain.from_iterable(resps))
    with Judge() as judge:

        def score(item: tuple[Sequence[str], Document]) -> tuple[list[JudgedSample], Metrics]:
            responses, doc = item
            gold, tolerance, problem = str(doc["answer"]), float(doc.get("tolerance") or 0), str(doc["problem"])
            return score_samples(gold, responses, judge.judge_samples, kind, tolerance, run.verifier, problem, run.think_end)

        scored = judge.map(score, zip(resps, docs, strict=True))
        problems = list(tqdm(scored, total=len(docs), desc="Verifying answers", delay=5))
    if run.log is not None:
        run.log(
            Verdict(digest, digest_of_text(response), sample.answer, sample.outcome)
            for (samples, _), responses, digest in zip(problems, resps, map(digest_of, docs), strict=True)
            for response, sample in zip(responses, samples, strict=True)
        )
    return [Record(*problem) for problem in problems]


def process_results(doc: Document, results: Sequence[Record]) -> Metrics:
    (record,) = results
    return record.metrics


def _by_row(convert: Callable[[Document], Document]) -> ProcessDocs:
    """Every row as `problem`, `answer` and what else `convert` gives. Not by `map`, which keeps the types of old columns."""

    @functools.wraps(convert)
    def process(dataset: datasets.Dataset) -> datasets.Dataset:
        return datasets.Dataset.from_list([convert(row) for row in dataset])

    return process


def process_math500(dataset: datasets.Dataset) -> datasets.Dataset:
    """As it is, without the worked solution, which would double the logs."""
    return dataset.remove_columns("solution")


@_by_row
def process_gsm8k(row: Document) -> Document:
    """The gold answer is what follows `####`."""
    return {"problem": row["question"], "answer": row["answer"].rpartition("####")[2].strip().replace(",", "")}


def _convert_integers(problem: str, answer: str, key: str) -> ProcessDocs:
    """Problems whose answers are integers, which copies of these sets also write as `27.0` or `033`."""
    return _by_row(lambda row: {"problem": row[problem], "answer": str(int(float(row[answer]))), "id": str(row[key])})


process_amc23 = _convert_integers("question", "answer", "id")
process_aime24 = _convert_integers("Problem", "Answer", "ID")
process_aime25 = _convert_integers("problem", "answer", "id")  # AIME 2026 has the same columns


@_by_row
def process_hmmt(row: Document) -> Document:
    """MathArena's columns. Answers are LaTeX, or a list of answers separated by commas."""
    return {"problem": row["problem"], "answer": str(row["answer"]).strip(), "id": str(row["problem_idx"])}


# Two gold answers of OlympiadBench's release are misprinted.
_MISPRINTS = {"$t(0,4]$": "$(0,4]$", "$221,$8$": "$221$,$8$"}


@_by_row
def process_olympiadbench(row: Document) -> Document:
    """Gold answers with their unit; several answers are one list, to be matched as a set; `error` is the tolerance."""
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


@_by_row
def process_gpqa(row: Document) -> Document:
    """The four choices in an order that a hash of the question and the choice decides, and the letter of the right one."""
    question = row["Question"].strip()
    columns = ("Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))
    right, *_ = choices = [" ".join(row[column].split()) for column in columns]
    choices.sort(key=lambda choice: blake2b(f"{question}\n{choice}".encode(), digest_size=16).digest())
    named = {"id": row["Record ID"], "canary": row["Canary String"]}
    return {"problem": question, "choices": choices, "answer": "ABCD"[choices.index(right)], **named}


def draw_subset(process: ProcessDocs, size: int) -> ProcessDocs:
    """`size` rows in their order, drawn by a hash of the problem: the same on every machine, whatever the order of rows."""

    def draw(dataset: datasets.Dataset) -> datasets.Dataset:
        rows = process(dataset)
        digests = [blake2b(f"{SUBSET_SEED}\n{text}".encode(), digest_size=16).digest() for text in rows["problem"]]
        return rows.select(sorted(sorted(range(len(rows)), key=digests.__getitem__)[:size]))

    return draw


# The sizes of the paper's evaluation.
process_math500_paper = draw_subset(process_math500, 100)
process_gsm8k_paper = draw_subset(process_gsm8k, 100)
process_olympiadbench_paper = draw_subset(process_olympiadbench, 100)
process_gpqa_paper = draw_subset(process_gpqa, 50)


def load_demo(**_: Any) -> dict[str, datasets.Dataset]:
    """The 200 packaged puzzles, without the data set cache."""
    return {"test": datasets.Dataset.from_list(demo.problems())}


def load_graded_demo(**_: Any) -> dict[str, datasets.Dataset]:
    return {"test": datasets.Dataset.from_list(demo.problems(demo.GRADED_PROBLEMS))}
