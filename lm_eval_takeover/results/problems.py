"""Reads samples files of lm-eval: problems and their metrics.

Problems without a response are `missing`.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results.documents import Fields, read_lines
from lm_eval_takeover.results.statistics import Values, as_values, join_clusters
from lm_eval_takeover.samples import list_ks, name_document, pass_at_k
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.schema import show

ACC = "acc"  # the share of correct samples, whatever the task calls it
# Other shares of samples: what Acc is made of.
REASONS = ("acc_boxed", "unboxed", "truncated", "no_answer", "restated", "unparsed", "timed_out", "unclosed_think")
_ACCURACIES = (ACC, "exact_match", "pass@1")  # which of a task's metrics that share is, if it has one of these
_BY_NUMBER = re.compile(r"(?P<name>pass|maj)@(?P<number>\d+)")
WRITER = "`lm_eval … --log_samples`"
_ID = 16  # digits of a digest that are kept: so a baseline is small
NO_METRICS = "this run has no metrics; run lm_eval without --predict_only"


@dataclass(frozen=True)
class Problems:
    """The problems of one task in one run. `ids` are lm-eval's digests of the documents; arrays follow their order."""

    ids: tuple[str, ...]
    samples: int  # of each problem
    values: dict[str, Values]  # by metric
    doc_ids: tuple[int, ...] = ()  # lm-eval's numbers, where they are known
    texts: str = ""  # digest of all responses, whatever the order of problems
    responses: tuple[str, ...] = ()  # digests of those to each problem, where they are known
    sample_texts: tuple[tuple[str, ...], ...] = ()  # of each problem the digests of its samples' texts, where they are known
    missing: int = 0  # further problems, which crashed or are not there
    prompts: tuple[str, ...] = ()  # lm-eval's digests of the prompts
    clusters: tuple[int, ...] = ()  # the number of each problem's cluster; none where every problem stands alone

    def __len__(self) -> int:
        return len(self.ids)

    def means(self) -> dict[str, float]:
        return {metric: float(values.mean()) for metric, values in self.values.items()}

    def ordered_as(self, ids: tuple[str, ...]) -> Self:
        places = {name: place for place, name in enumerate(self.ids)}
        order = np.array([places[name] for name in ids], dtype=int)
        values = {metric: values[order] for metric, values in self.values.items()}
        known = {name: getattr(self, name) for name in ("doc_ids", "responses", "sample_texts", "prompts", "clusters")}
        ordered: dict[str, Any] = {name: tuple(each[place] for place in order) for name, each in known.items() if each}
        return replace(self, ids=ids, values=values, **ordered)


NO_PROBLEMS = Problems((), 0, {})  # where no samples were logged; it is false, as its length is 0


def align(sides: Sequence[Problems], missing: float = 0.0) -> list[Problems] | None:
    """The problems that all sides have, in one order; None if there are none, or one has more than a share `missing` besides."""
    shared = set(sides[0].ids).intersection(*(side.ids for side in sides))
    enough = all(len(side) - len(shared) <= missing * len(side) for side in sides)
    ids = tuple(name for name in sides[0].ids if name in shared)
    return [side.ordered_as(ids) for side in sides] if enough and shared else None


@dataclass(frozen=True)
class ReadOptions:
    """How logs are read: the filter of tasks that have several (None: the first one), and the share that may be missing."""

    filter: str | None = None
    max_missing: float = 0.02
    group: str | None = None  # the field of a document whose equal values make one cluster

    def find_group(self, place: str, document: Any) -> str:
        """The group of a document (`--group`). Raises ResultsError if it lacks the field."""
        if self.group is None:
            return ""
        if not isinstance(document, Mapping) or document.get(self.group) is None:
            known = ", ".join(map(str, document or {})) or "none"
            raise ResultsError(f"{place}: the document has no value in '{self.group}' (--group); its fields: {known}")
        return json.dumps(document[self.group], sort_keys=True, default=str)


@dataclass(frozen=True)
class LoggedProblem:
    """One problem as a log has it: its metrics from 0 to 1, the number of its samples, and a digest of its responses."""

    name: str
    doc_id: int
    metrics: dict[str, float]
    samples: int
    texts: str
    prompt: str = ""
    group: str = ""  # of `--group`
    sample_texts: tuple[str, ...] = ()


class NotCorrect(ResultsError):
    """A metric of the task is no number from 0 to 1 for each problem."""


def choose_accuracy(names: Iterable[str]) -> str | None:
    """Choose the metric that is the share of correct samples: a known name, else the first name given."""
    metrics = [name for name in names if name not in (*REASONS, "bypass")]  # which lm-eval writes where it judges nothing
    return next((name for name in _ACCURACIES if name in metrics), None) or next(iter(metrics), None)


def list_metrics(names: Iterable[str], accuracy: str = ACC) -> list[str]:
    """List the metrics that are read: the accuracy, Pass@k and Maj@n by rising number, and why samples failed."""
    present = set(names)
    numbered = [match for name in present if name != accuracy and (match := _BY_NUMBER.fullmatch(name))]
    numbered.sort(key=lambda match: (match["name"] != "pass", int(match["number"])))
    return [accuracy, *(match[0] for match in numbered), *(name for name in REASONS if name in present)]


def list_scores(names: Iterable[str]) -> list[str]:
    """List the metrics that are better if higher: the accuracy, Pass@k and Maj@n."""
    return [name for name in names if name == ACC or _BY_NUMBER.fullmatch(name)]


def read_problems(
    path: Path, filter_name: str, accuracy: str = ACC, skipped: Collection[str] = (), reading: ReadOptions = ReadOptions()
) -> Problems:
    """Read the rows of one filter in a samples file. Raises ResultsError with file, line and field.

    The metric `accuracy` is called `acc` in what is returned. Metrics that have no number from 0 to 1 for each problem are left
    out, and so are those that are `skipped`. Raises NotCorrect if `accuracy` is such a metric.
    """
    repeats, copies = dict[tuple[str, int], int](), Counter[str]()
    rows, crashed, known = list[LoggedProblem](), 0, tuple[str, ...]()
    for number, row in enumerate(read_lines(path, WRITER), 1):
        if row.get("filter", filter_name) != filter_name:
            continue
        name, doc_id = row.require("doc_hash", str), row.require("doc_id", int)
        if (name, doc_id) in repeats:
            row.fail("doc_hash", f"is that of line {repeats[name, doc_id]}: the same problem twice")
        repeats[name, doc_id] = number
        document = name_document(name, copies)
        if _is_null(row.get("resps", [])):
            crashed += 1
            continue
        present = tuple(list_metrics(row, accuracy))
        known = known or present
        if present != known:
            row.fail(min(set(present) ^ set(known)), "is in some lines and not in others: two versions of the task?")
        if accuracy not in _ACCURACIES and not is_share(row.get(accuracy)):
            raise NotCorrect(f"metric '{accuracy}' is {show(row.get(accuracy))} in one line, expected a number from 0 to 1")
        others = [name for name in row.require("metrics", list, []) if isinstance(name, str) and name not in skipped]
        metrics = {metric: row.share(metric) for metric in present}
        metrics = {ACC: metrics.pop(accuracy), **metrics}
        metrics |= {m: float(row.get(m)) for m in others if m not in (*metrics, accuracy) and is_share(row.get(m))}
        texts, group = digest_of([document, row.get("resps")]), reading.find_group(row.place, row.get("doc"))
        each = tuple(digest_of(text) for part in row.get("resps", []) if isinstance(part, list) for text in part)
        prompt = str(row.get("prompt_hash") or "")
        rows.append(LoggedProblem(document, doc_id, metrics, _count_samples(row), texts, prompt, group, each))
        if rows[-1].samples != rows[0].samples:
            row.fail("filtered_resps", f"has {rows[-1].samples} samples, the lines before have {rows[0].samples}")
    if crashed > reading.max_missing * (total := crashed + len(rows)):
        raise ResultsError(
            f"'{path}' has no response to {crashed:,} of {total:,} problems, and --max_missing {reading.max_missing:g} is the "
            f"share that may be missing; run them again, or allow a larger share"
        )
    if not rows:
        raise ResultsError(f"'{path}' holds no sample of filter '{filter_name}'; write it again with {WRITER}")
    return collect_problems(rows, crashed)


def read_samples(path: Path, reading: ReadOptions) -> tuple[Problems, dict[str, str]]:
    """Read a samples file without a results file. Returns also which `metric` of which `filter` is `acc`. Raises ResultsError."""
    if (first := next(read_lines(path, WRITER), None)) is None:
        raise ResultsError(f"'{path}' holds no sample; write it again with {WRITER}")
    filter_name = reading.filter or first.require("filter", str, "")
    metrics = sorted(first.require("metrics", list[str]), key=lambda name: not is_share(first.get(name)))
    if (accuracy := choose_accuracy(metrics)) is None:
        raise NotCorrect(f"'{path}': {NO_METRICS}")
    return read_problems(path, filter_name, accuracy, reading=reading), {"metric": accuracy, "filter": filter_name}


def is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= 1


def collect_problems(rows: Sequence[LoggedProblem], missing: int = 0) -> Problems:
    """Put problems together. Metrics that only some have are left out."""
    samples = rows[0].samples
    shared = [metric for metric in rows[0].metrics if all(metric in row.metrics for row in rows)]
    values = {metric: as_values([row.metrics[metric] for row in rows]) for metric in shared}
    names, doc_ids = tuple(row.name[:_ID] for row in rows), tuple(row.doc_id for row in rows)
    values = fill_pass_at_k(values, samples)
    responses, prompts = tuple(row.texts for row in rows), tuple(row.prompt[:_ID] for row in rows)
    clusters = join_clusters(prompts, [row.group for row in rows])
    texts, each = digest_of(sorted(responses)), tuple(row.sample_texts for row in rows)
    return Problems(names, samples, values, doc_ids, texts, responses, each, missing, prompts, clusters)


def fill_pass_at_k(values: dict[str, Values], samples: int) -> dict[str, Values]:
    """The metrics in their order, with each Pass@k made of `acc` that is not there. None is made of grades between 0 and 1."""
    counts = values[ACC] * samples
    ks = list_ks(samples) if np.allclose(counts, np.rint(counts), atol=1e-6) else []
    values = {f"pass@{k}": as_values([pass_at_k(samples, round(count), k) for count in counts]) for k in ks} | values
    return {metric: values[metric] for metric in dict.fromkeys([*list_metrics(values), *values])}


def _is_null(responses: Any) -> bool:
    """Whether a response is null, as where a model of an API gave none."""
    return responses is None or (isinstance(responses, list) and any(map(_is_null, responses)))


def _count_samples(row: Fields) -> int:
    """How many samples the metrics of a problem are of: those that the filter leaves. Log-likelihoods are one."""
    arguments: Any = row.get("arguments")
    first = next(iter(arguments.values()), None) if isinstance(arguments, dict) else None
    if isinstance(first, dict) and isinstance(first.get("arg_1"), str):  # a continuation, no decoding options
        return 1
    for field in ("filtered_resps", "resps"):
        inner: Any = row.require(field, list, [])
        if inner and isinstance(inner[0], list) and inner[0]:
            return len(inner[0])
        if inner and not isinstance(inner[0], list):
            return 1
    row.fail("filtered_resps", "holds no samples")
