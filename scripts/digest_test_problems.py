"""Digests of the open benchmarks' problems, by which `calibrate` refuses prompts that are test problems.

python scripts/digest_test_problems.py        reads the six data sets from the hub, writes lm_eval_takeover/test_problems.json
"""

import json

import datasets

from lm_eval_takeover import benchmarks
from lm_eval_takeover.prompts import TEST_DIGESTS, problem_digest

SETS = {
    "takeover_math500": ("HuggingFaceH4/MATH-500", None, "test", benchmarks.process_math500),
    "takeover_gsm8k": ("openai/gsm8k", "main", "test", benchmarks.process_gsm8k),
    "takeover_amc23": ("math-ai/amc23", None, "test", benchmarks.process_amc23),
    "takeover_olympiadbench": (
        "Hothan/OlympiadBench",
        "OE_TO_maths_en_COMP",
        "train",
        benchmarks.process_olympiadbench,
    ),
    "takeover_aime24": ("Maxwell-Jia/AIME_2024", None, "train", benchmarks.process_aime24),
    "takeover_aime25": ("math-ai/aime25", None, "test", benchmarks.process_aime25),
}


def digests() -> dict[str, list[str]]:
    found = {}
    for task, (name, config, split, process) in SETS.items():
        rows = process(datasets.load_dataset(name, config, split=split))
        found[task] = sorted({problem_digest(row["problem"]) for row in rows})
    return found


if __name__ == "__main__":
    TEST_DIGESTS.write_text(json.dumps(digests(), indent=0) + "\n")
