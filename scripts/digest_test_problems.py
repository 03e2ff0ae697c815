"""Digests of the open benchmarks' problems, by which `calibrate` refuses prompts that are test problems.

python scripts/digest_test_problems.py        reads the six data sets from the hub, writes
                                              lm_eval_takeover/tasks/known_problems.json
"""

import json

from lm_eval_takeover.tasks.known_problems import DIGESTS, problem_digest
from lm_eval_takeover.tasks.sampled import load_named_tasks


def digests() -> dict[str, list[str]]:
    return {
        name: sorted({problem_digest(doc["problem"]) for doc in task.test_docs()})
        for name, task in load_named_tasks(["takeover_math"]).items()
    }


if __name__ == "__main__":
    DIGESTS.write_text(json.dumps(digests(), indent=0) + "\n")
