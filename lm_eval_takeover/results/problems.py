"""Reads a samples file of lm-eval: the identity of each problem, and its metrics over its samples."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results.fields import Fields, read_lines
from lm_eval_takeover.results.statistics import Values, as_values
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.tasks.metrics import list_ks, pass_at_k

ACC = "acc"  # the share of correct samples, whatever the task calls it
# Other shares of samples: what Acc is made of.
REASONS = ("acc_boxed", "unboxed", "truncated", "no_answer", "restated", "unparsed", "timed_out", "unclosed_think")
_ACCURACIES = (ACC, "exact_match", "pass@1")  # which of a task's metrics that share is, if it has one of these
_BY_NUMBER = re.compile(r"(?P<name>pass|maj)@(?P<number>\d+)")
WRITER = "`lm_eval … --log_samples`"


@dataclass(frozen=True)
class Problems:
    """The problems of one task in one run. `ids` are lm-eval's digests of the documents; arrays follow their order."""

    ids: tuple[str, ...]
    samples: int  # of each problem
    values: dict[str, Values]  # by metric
    doc_ids: tuple[int, ...] = ()  # lm-eval's numbers, where they are known
    texts: str = ""  # digest of all responses, whatever the order of problems

    def __len__(self) -> int:
        return len(self.ids)

    def ordered_as(self, ids: tuple[str, ...]) -> Self:
        """The same problems in this order."""
        places = {name: place for place, name in enumerate(self.ids)}
        order = np.array([places[name] for name in ids], dtype=int)
        values = {metric: values[order] for metric, values in self.values.items()}
        doc_ids = tuple(self.doc_ids[place] for place in order) if self.doc_ids else ()
        return type(self)(ids, self.samples, values, doc_ids, self.texts)


class NotCorrect(ResultsError):
    """A metric of the task is no share of correct samples."""


def choose_accuracy(names: Iterable[str]) -> str | None:
    """Choose the metric that is the share of correct samples: a known name, else the first name given."""
    given = [name for name in names if name not in REASONS]
    return next((name for name in _ACCURACIES if name in given), None) or next(iter(given), None)


def list_metrics(names: Iterable[str], accuracy: str = ACC) -> list[str]:
    """List the metrics that are read: the accuracy, Pass@k and Maj@n by rising number, and why samples failed."""
    given = set(names)
    numbered = [match for name in given if name != accuracy and (match := _BY_NUMBER.fullmatch(name))]
    numbered.sort(key=lambda match: (match["name"] != "pass", int(match["number"])))
    return [accuracy, *(match[0] for match in numbered), *(name for name in REASONS if name in given)]


def list_scores(names: Iterable[str]) -> list[str]:
    """List the metrics that are better if higher: the accuracy, Pass@k and Maj@n."""
    return [name for name in names if name == ACC or _BY_NUMBER.fullmatch(name)]


def derive_pass_at_k(shares: Values, samples: int | Values, k: int) -> Values:
    """Pass@k by problem from the share of its samples that are correct; `samples` of all problems, or of each."""
    drawn = np.broadcast_to(np.asarray(samples, dtype=int), shares.shape)
    return as_values([pass_at_k(int(n), round(share * n), k) for share, n in zip(shares, drawn, strict=True)])


def read_problems(path: Path, filter_name: str, accuracy: str = ACC) -> Problems:
    """Read the rows of one filter in a samples file. Raises ResultsError with file, line and field.

    The metric `accuracy` is called `acc` in what is returned. Pass@k that the task does not report is made of it. Raises
    NotCorrect where that metric is no share of correct samples.
    """
    seen: dict[str, int] = {}
    doc_ids, rows = list[int](), list[list[float]]()
    texts: list[str] = []
    samples = 0
    metrics: tuple[str, ...] = ()
    for number, row in enumerate(read_lines(path, WRITER), 1):
        if row.get("filter", filter_name) != filter_name:
            continue
        name = row.require("doc_hash", str)
        if name in seen:
            row.fail("doc_hash", f"is that of line {seen[name]}: the same problem twice")
        seen[name] = number
        texts.append(digest_of([name, row.get("resps")]))
        doc_ids.append(row.require("doc_id", int))
        here = tuple(list_metrics(row, accuracy))
        metrics = metrics or here
        if here != metrics:
            row.fail(min(set(here) ^ set(metrics)), "is in some lines and not in others: two versions of the task?")
        rows.append([row.share(metric) for metric in metrics])
        count = _count_samples(row)
        samples = samples or count
        if count != samples:
            row.fail("filtered_resps", f"has {count} samples, the lines before have {samples}")
    if not rows:
        raise ResultsError(f"'{path}' holds no sample of filter '{filter_name}'; write it again with {WRITER}")
    columns = as_values(rows).T
    values = {ACC: columns[0]} | {metric: columns[place] for place, metric in enumerate(metrics) if place}
    counts = values[ACC] * samples
    if not np.allclose(counts, np.rint(counts), atol=1e-6):
        raise NotCorrect(f"metric '{accuracy}' is no share of {samples} samples that are correct or not")
    for k in list_ks(samples):
        values.setdefault(f"pass@{k}", derive_pass_at_k(values[ACC], samples, k))
    values = {metric: values[metric] for metric in list_metrics(values)}
    return Problems(tuple(seen), samples, values, tuple(doc_ids), digest_of(sorted(texts)))


def _count_samples(row: Fields) -> int:
    """How many samples the metrics of a problem are of: those that the filter leaves."""
    for field in ("filtered_resps", "resps"):
        inner: Any = row.require(field, list, [])
        if inner and isinstance(inner[0], list) and inner[0]:
            return len(inner[0])
        if inner and not isinstance(inner[0], list):
            return 1
    row.fail("filtered_resps", "holds no samples")
