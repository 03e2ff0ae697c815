"""Where the problems of our tasks come from, and what the Hub calls the benchmark."""

from dataclasses import dataclass

from lm_eval_takeover.results.runs import PREFIX


@dataclass(frozen=True)
class Benchmark:
    """A data set of the Hub. `task_id` is that of its `eval.yaml`, which its owners may change."""

    name: str
    dataset: str
    split: str
    task_id: str


_BENCHMARKS = (
    Benchmark("math500", "HuggingFaceH4/MATH-500", "test", "default"),
    Benchmark("gsm8k", "openai/gsm8k", "test", "gsm8k"),
    Benchmark("amc23", "math-ai/amc23", "test", "default"),
    Benchmark("olympiadbench", "Hothan/OlympiadBench", "train", "OE_TO_maths_en_COMP"),
    Benchmark("aime24", "Maxwell-Jia/AIME_2024", "train", "default"),
    Benchmark("aime25", "math-ai/aime25", "test", "default"),
    Benchmark("aime26", "math-ai/aime26", "test", "default"),
    Benchmark("hmmt_feb26", "MathArena/hmmt_feb_2026", "train", "default"),
    Benchmark("gpqa_diamond", "Idavidrein/gpqa", "train", "gpqa_diamond"),
)


def find_benchmark(task: str) -> Benchmark | None:
    """That of a task or of a draw from it; None for the demo and for tasks of one's own."""
    name = task.removeprefix(PREFIX) if task.startswith(PREFIX) else ""
    return next((one for one in _BENCHMARKS if name == one.name or name.startswith(f"{one.name}_")), None)


def is_draw(task: str) -> bool:
    """Whether the task asks only a part of its benchmark."""
    found = find_benchmark(task)
    return found is not None and task != f"{PREFIX}{found.name}"
