"""Sources of exports: a results file, the name of its model, and the Hub's names of its benchmarks."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from lm_eval_takeover.results import runs
from lm_eval_takeover.results.fields import Fields, read_document
from lm_eval_takeover.results.runs import PREFIX, Run
from lm_eval_takeover.storage.paths import make_component
from lm_eval_takeover.storage.schema import Between

PAIRS = ("guided", "random", "early")  # kinds of runs whose texts two models wrote
RESULTS_WRITER = "`lm_eval … --output_path`"


@dataclass(frozen=True)
class ResultsFile:
    """One results file."""

    path: Path
    run: Run
    document: Fields

    @property
    def is_pair(self) -> bool:
        return self.run.kind in PAIRS

    @property
    def model(self) -> str:
        """`owner/name`, each fit for a path. A pair's is `takeover/BASE+GUIDE-policy`; a local folder's owner is `local`."""
        owner, _, name = self._name.partition("/")
        return f"{make_component(owner)}/{make_component(name)}"

    @property
    def _name(self) -> str:
        takeover = self.run.takeover
        if self.is_pair:
            base, guide = (self.model_id(role).rstrip("/").rpartition("/")[2] for role in ("base", "guide"))
            return f"takeover/{base}+{guide}-{takeover['policy']}"
        if self.run.kind in ("base", "guide"):
            name = self.model_id(self.run.kind)
        else:
            name = str(self.run.settings.get("model_args.pretrained") or self.run.model)
        local = name.startswith(("/", ".", "~")) or name.count("/") != 1 or Path(name).exists()
        return f"local/{name.rstrip('/').rpartition('/')[2]}" if local else name

    def model_id(self, role: str) -> str:
        """The id of a model. Raises ResultsError where the results have none."""
        identity: str = self.document.inside("config").inside("takeover").inside(role).require("id", str)
        return identity

    @property
    def date(self) -> datetime:
        """When the run began; of results without a date the time of the file."""
        stamp = self.document.require("date", Annotated[float, Between(0, 2**32)], None)
        return datetime.fromtimestamp(self.path.stat().st_mtime if stamp is None else stamp, UTC).replace(microsecond=0)

    def describe(self) -> str:
        """One line on who wrote the texts."""
        takeover = self.run.takeover
        if not self.is_pair:
            return f"{self.model} alone"
        host, donor = ("guide", "base") if takeover.get("direction") == "reverse" else ("base", "guide")
        rate = takeover.get("realized_rate")
        share = "a share that is not known" if rate is None else f"{rate:.1%}"
        places = {"random": "at random places", "early": "at the start of each answer"}
        rule = places.get(self.run.kind, f"where {takeover.get('score')} spikes")
        return (
            f"A pair, not {self.model_id(host)} alone: {donor} {self.model_id(donor)} wrote {share} of the tokens, {rule} "
            f"(guided-takeover)"
        )

    def decoding(self, task: str) -> dict[str, Any]:
        settings = self.run.tasks[task].settings
        return {name: settings.get(name) for name in ("temperature", "top_p", "top_k", "max_gen_toks")}


def read_sources(paths: Iterable[Path]) -> tuple[list[ResultsFile], list[str]]:
    """Every results file below these paths, and what was left out, one line each. Raises ResultsError."""
    sources: list[ResultsFile] = []
    notes: list[str] = []
    for file in runs.find_all_results(paths):
        run = runs.read_run(file)
        if run.takeover.get("rescored") and (place := runs.find_origin(run, [source.run for source in sources])) is not None:
            run = runs.take_verdicts(sources[place].run, run, notes)
            sources[place] = ResultsFile(file, run, read_document(file, RESULTS_WRITER))
            continue
        if run.tasks:
            sources.append(ResultsFile(file, run, read_document(file, RESULTS_WRITER)))
        else:
            notes.append(f"'{file}' is left out: it holds none of the {PREFIX}* tasks")
    return sources, notes


class Benchmark(NamedTuple):
    """A data set of the Hub. `task_id` is that of its `eval.yaml`, which its owners may change."""

    name: str
    dataset: str
    task_id: str


_BENCHMARKS = (
    Benchmark("math500", "HuggingFaceH4/MATH-500", "default"),
    Benchmark("gsm8k", "openai/gsm8k", "gsm8k"),
    Benchmark("amc23", "math-ai/amc23", "default"),
    Benchmark("olympiadbench", "Hothan/OlympiadBench", "OE_TO_maths_en_COMP"),
    Benchmark("aime24", "Maxwell-Jia/AIME_2024", "default"),
    Benchmark("aime25", "math-ai/aime25", "default"),
    Benchmark("aime26", "math-ai/aime26", "default"),
    Benchmark("hmmt_feb26", "MathArena/hmmt_feb_2026", "default"),
    Benchmark("hmmt_nov25", "MathArena/hmmt_nov_2025", "default"),
    Benchmark("brumo25", "MathArena/brumo_2025", "default"),
    Benchmark("apex25", "MathArena/apex_2025", "default"),
    Benchmark("gpqa_diamond", "Idavidrein/gpqa", "gpqa_diamond"),
)


def find_benchmark(task: str) -> Benchmark | None:
    """That of a task or of a draw from it; None for the demo and for tasks of one's own."""
    name = task.removeprefix(PREFIX) if task.startswith(PREFIX) else ""
    return next((known for known in _BENCHMARKS if f"{name}_".startswith(f"{known.name}_")), None)
