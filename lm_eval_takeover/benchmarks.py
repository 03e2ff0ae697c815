"""What the task files under `task_configs/` call: documents in one shape, all samples kept, one set of metrics."""

from collections.abc import Sequence
from typing import Any

import datasets

from lm_eval_takeover.demo import PROBLEMS
from lm_eval_takeover.metrics import score_samples


def keep_all(resps: Sequence[Any], docs: Sequence[dict[str, Any]]) -> Sequence[Any]:
    """A filter that hands every sample on; lm-eval's default would keep the first only."""
    return resps


def process_results(doc: dict[str, Any], results: Sequence[Sequence[str]]) -> dict[str, float]:
    """The metrics of one document from its list of samples."""
    (responses,) = results
    return score_samples(doc["answer"], responses, name=f"problem {doc['problem'][:60]!r}")


def process_gsm8k(dataset: datasets.Dataset) -> datasets.Dataset:
    """`question` and `answer` as `problem` and the number after `####`."""

    def convert(row: dict[str, Any]) -> dict[str, str]:
        return {"problem": row["question"], "answer": row["answer"].rpartition("####")[2].strip().replace(",", "")}

    return dataset.map(convert, remove_columns=["question"])


def load_demo(**_: Any) -> dict[str, datasets.Dataset]:
    """The 200 packaged puzzles, without the data set cache."""
    import json

    rows = [json.loads(line) for line in PROBLEMS.read_text().splitlines()]
    return {"test": datasets.Dataset.from_list(rows)}
