"""What `compare` takes for a task: one whose accuracy is a share of correct samples."""

from types import SimpleNamespace

import pytest
from lm_eval.api.metrics import bleu, mean

from lm_eval_takeover.commands.compare.workload import _check_metric
from lm_eval_takeover.errors import ArgumentError


@pytest.mark.parametrize(("metrics", "said"), [({"bleu": bleu}, "the metric bleu"), ({}, "no metric")])
def test_a_task_without_a_share_of_right_answers_is_refused(metrics, said):
    task = SimpleNamespace(aggregation=lambda: metrics)
    with pytest.raises(ArgumentError, match=f"--tasks mine has {said}; expected one that says of each sample"):
        _check_metric("mine", task)
    _check_metric("mine", SimpleNamespace(aggregation=lambda: {"f1": len, "exact_match": mean}))
