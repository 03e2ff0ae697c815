"""What a samples file of lm-eval says of each problem: its identity, and its metrics over its samples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.results.fields import Fields, read_lines
from lm_eval_takeover.results.statistics import Values, as_values
from lm_eval_takeover.storage.digests import digest_of

METRICS = ("acc", "pass@8", "maj@8", "no_answer", "unparsed", "timed_out", "unclosed_think")
OPTIONAL = METRICS[3:]  # came with later versions of the tasks
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


def read_problems(path: Path, filter_name: str) -> Problems:
    """The rows of one filter in a samples file, read line by line. Raises ResultsError with file, line and field."""
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
        here = tuple(metric for metric in METRICS if metric in row or metric not in OPTIONAL)
        metrics = metrics or here
        if here != metrics:
            row.fail(min(set(here) ^ set(metrics)), "is in some lines and not in others: two versions of the task?")
        rows.append([row.share(metric) for metric in metrics])
        count = _count_samples(row)
        samples = samples or count
        if count != samples:
            row.fail("filtered_resps", f"has {count} samples, the lines before have {samples}")
    if not rows:
        raise ResultsError(f"'{path}' holds no sample of filter '{filter_name}'; write it anew with {WRITER}")
    columns = as_values(rows).T
    values = {metric: columns[place] for place, metric in enumerate(metrics)}
    return Problems(tuple(seen), samples, values, tuple(doc_ids), digest_of(sorted(texts)))


def _count_samples(row: Fields) -> int:
    """Samples of the problem: the pairs of answer and outcome that our filter leaves, else the responses."""
    for field in ("filtered_resps", "resps"):
        inner: Any = row.require(field, list, [])
        if inner and isinstance(inner[0], list) and inner[0]:
            return len(inner[0])
    row.fail("filtered_resps", "holds no samples")
