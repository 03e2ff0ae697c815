"""Two runs, of which files of one are copied over those of the other: does a reader take one for the other?"""

import collections
import contextlib
import itertools
import random
import shutil
from pathlib import Path

import pyarrow.parquet as pq

from helpers.analyses import write_run
from helpers.foreign_files import write_random_scores
from helpers.run_dirs import kill_run, make_sample
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.lab.analyze.inputs import Inputs
from lm_eval_takeover.lab.report.building import read_scores
from lm_eval_takeover.runs.journal import Journal
from lm_eval_takeover.runs.layout import list_journals
from lm_eval_takeover.runs.parquet import TRACE_SCHEMA, tabulate
from lm_eval_takeover.runs.run_reader import read_run_folder, split_samples
from lm_eval_takeover.runs.run_writer import RunWriter

SIDES = {"ours": None, "theirs": 0.3}  # the rate makes it another run


def make_runs(folder: Path) -> list[dict[tuple, set[str]]]:
    """Each run twice: finished, and killed, with a log of its journal. Of each what readers may find."""
    for number, (side, rate) in enumerate(SIDES.items()):
        rng = random.Random(number)
        rollouts = {
            ("takeover_demo", doc, sample): ([rng.randrange(50) for _ in range(9)], {}, rng.random() < 0.5, str(number))
            for doc in range(2) for sample in range(2)
        }  # fmt: skip
        problems = {("takeover_demo", doc): (f"problem {doc} of {side}", str(number)) for doc in range(2)}
        write_run(folder / side, "base", rollouts, problems, rate=rate)
        write_random_scores(folder / side, number, files=number + 1)
        killed = RunWriter(shutil.copytree(folder / side, folder / f"{side}, killed"))
        (command,) = killed.journal.commands()
        killed.begin(command, killed.journal.attempts(command)[0][0], [])
        killed.add(make_sample(number))
        kill_run(killed)
    truth = [collections.defaultdict(set) for _ in SIDES]
    for known, side in zip(truth, SIDES, strict=True):
        for key, value in itertools.chain(*(read_all(path).items() for path in folder.glob(f"{side}*"))):
            known[key].add(value)
    return truth


def read_all(folder: Path) -> dict:
    """What readers find of a run. The keys say whose it is: the digest of a sample's settings, or the settings."""
    run = read_run_folder(folder)
    texts, found = {one.stored.key: one for one in run.stored_samples()}, {}
    found["run", repr(run.settings)] = repr((run.arguments, run.takeover, run.tasks, run.decoding))
    for key, one in texts.items():
        found["text", key] = repr(one)
        with contextlib.suppress(TakeoverError):
            found["prompt", key] = repr(run.find_prompt(one))
    for name, rows in run.prompts.items():
        found["problem", repr(run.settings), name] = repr(rows)
    with contextlib.suppress(TakeoverError):
        for one, table in run.read_traces(TRACE_SCHEMA.names):
            found["trace", one.stored.key] = repr(table.to_pydict())
    with contextlib.suppress(TakeoverError):
        for key, scored in read_scores(run, texts, "ce").items():
            found["scores", key] = repr({name: list(column) for name, column in scored.columns.items()})
    with contextlib.suppress(TakeoverError):
        found["score files", repr(run.settings)] = len(Inputs.name([run], None).score_files)
    return found


def try_mix(sound: Path, truth: list[dict[tuple, set[str]]], scratch: Path, seed: int) -> str:
    """Copy some files of one run over those of the other. `refused`, `read` as one of the two, or `silent`: read as a mixture."""
    rng = random.Random(seed)
    ours, theirs = rng.sample(sorted(path.name for path in sound.iterdir()), 2)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(sound / ours, scratch)
    files = sorted(path.relative_to(sound / theirs) for path in (sound / theirs).rglob("*") if path.is_file())
    for name in rng.sample(files, rng.randint(1, len(files))):
        (scratch / name).parent.mkdir(exist_ok=True)
        shutil.copy(sound / theirs / name, scratch / name)
    outcome = "refused"
    with contextlib.suppress(TakeoverError):
        outcome = _judge(read_all(scratch), truth)
    with contextlib.suppress(TakeoverError):  # its own command, which repairs it
        RunWriter(scratch).close()
        if _judge(read_all(scratch), truth) == "silent" or _read_parquet(scratch) != _list_traces(scratch):
            outcome = "silent"
    return outcome


def _judge(found: dict, truth: list[dict[tuple, set[str]]]) -> str:
    return "read" if any(all(value in known[key] for key, value in found.items()) for known in truth) else "silent"


def _list_traces(folder: Path) -> list[str]:
    found = []
    for path in list_journals(folder):
        with contextlib.closing(Journal(path, read_only=True)) as journal:
            found += [repr(tabulate([sample]).to_pydict()) for sample in journal.list_traces()]
    return sorted(found)


def _read_parquet(folder: Path) -> list[str]:
    """The traces in its parquet files, as `_list_traces` gives them."""
    tables = [pq.read_table(path) for path in (folder / "traces").glob("*.parquet")]
    return sorted(
        repr(table.slice(start, stop - start).to_pydict()) for table in tables for _, start, stop in split_samples(table)
    )
