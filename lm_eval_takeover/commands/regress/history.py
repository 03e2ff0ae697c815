"""The runs that were compared with one baseline, as a file with a JSON line for each: together they keep one error rate."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lm_eval_takeover.commands.regress.baseline import Measured
from lm_eval_takeover.commands.regress.verdicts import TaskVerdict
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.fields import read_lines
from lm_eval_takeover.storage.digests import digest_of

WRITER = "`lm-eval-takeover regress --history FILE`"


def list_runs(path: Path, baseline: Measured) -> list[str]:
    """Digests of the runs that were compared with this baseline, each once. Raises ResultsError for a file of something else."""
    if not path.exists():
        return []
    lines = [(line.require("baseline", str), line.require("run", str)) for line in read_lines(path, WRITER)]
    return list(dict.fromkeys(run for digest, run in lines if digest == baseline.digest))


def digest_run(measured: Measured) -> str:
    """Of all texts of a run: the same run again counts once."""
    return digest_of({task: [run.problems.texts for run in side.runs] for task, side in measured.tasks.items()})


def add_run(path: Path, baseline: Measured, new: Measured, checks: Sequence[Mapping[str, TaskVerdict]]) -> None:
    """Append a line with the verdicts of each metric. Raises ArgumentError where the file cannot be written."""
    line = {
        "baseline": baseline.digest,
        "run": digest_run(new),
        "model": new.model,
        "verdicts": [
            {name: [found.metric, found.verdict, found.difference] for name, found in verdicts.items()}
            for verdicts in checks
        ],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
    except OSError as error:
        raise ArgumentError(f"--history '{path}' cannot be written: {error.strerror}") from error
