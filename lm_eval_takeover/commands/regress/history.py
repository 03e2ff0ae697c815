"""Keeps a file with a JSON line for each run against a baseline, so that all of them share one error rate."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from lm_eval_takeover.commands._output import writing
from lm_eval_takeover.commands.regress.baseline import SeedRuns
from lm_eval_takeover.commands.regress.verdicts import TaskVerdict
from lm_eval_takeover.results.fields import read_lines
from lm_eval_takeover.storage.digests import digest_of
from lm_eval_takeover.storage.regular_files import open_regular

WRITER = "`lm-eval-takeover regress --history FILE`"
logger = logging.getLogger(__name__)
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND


def list_runs(path: Path, baseline: SeedRuns) -> list[str]:
    """List the digests of the runs that were compared with this baseline. Raises ResultsError for another kind of file."""
    if not path.exists():
        return []
    entries = read_lines(path, WRITER, skip=logger.warning)
    lines = [(line.require("baseline", str), line.require("run", str)) for line in entries]
    return list(dict.fromkeys(run for digest, run in lines if digest == baseline.digest))


def digest_run(measured: SeedRuns) -> str:
    """Digest all texts of a run. The same run again counts once."""
    return digest_of({task: [run.texts for run in side.runs] for task, side in measured.tasks.items()})


def add_run(path: Path, baseline: SeedRuns, new: SeedRuns, checks: Sequence[Mapping[str, TaskVerdict]]) -> None:
    """Append a line with the verdicts of each metric. A line that was cut off is ended first. Raises ArgumentError."""
    line = {
        "baseline": baseline.digest,
        "run": digest_run(new),
        "model": new.model,
        "verdicts": [
            {name: [verdict.metric, verdict.verdict, verdict.difference] for name, verdict in verdicts.items()}
            for verdicts in checks
        ],
    }
    with writing("history", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_regular(path, _APPEND, follow=True), "ab+") as stream:
            stream.seek(max(stream.tell() - 1, 0))
            start = b"" if stream.read(1) in (b"", b"\n") else b"\n"
            stream.write(start + json.dumps(line).encode() + b"\n")
