"""Runs tasks with a model that knows the gold answers: `scripted.py TASKS [METADATA [LIMIT]]` prints lm-eval's results as JSON.

The fourth sample of every problem has no answer; all others are `\\boxed{gold}`.
"""

import json
import sys

from lm_eval.models.dummy import DummyLM
from lm_eval.utils import handle_non_serializable

from helpers.demo_runs import evaluate


class Scripted(DummyLM):
    def __init__(self):
        super().__init__()
        self.asked = {}

    def generate_until(self, requests, **_):
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        sample = self.asked[id(request)] = self.asked.get(id(request), -1) + 1
        gold = request.doc["answer"].replace("\\$", "").replace("$", "")
        return "I cannot tell" if sample == 3 else f"{request.doc['problem']}\nSo it is $\\boxed{{{gold}}}$."


if __name__ == "__main__":
    metadata, limit = (*map(json.loads, sys.argv[2:]), None, None)[:2]
    results = evaluate(Scripted(), sys.argv[1].split(","), limit=limit, metadata=metadata, bootstrap_iters=1000)
    names = ("results", "groups", "group_subtasks", "n-samples", "versions", "samples")
    print(json.dumps({name: results.get(name) for name in names}, default=handle_non_serializable))
