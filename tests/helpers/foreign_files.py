"""Files as a stranger may send them: sound ones of each kind, then changed at random, and the commands that read them.

Checksums are made to fit again, as a stranger can do: else nothing behind them would be tried.
"""

import collections
import contextlib
import io
import itertools
import json
import random
import shutil
import sqlite3
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa

from helpers.analyses import score_run, write_analysis, write_run
from helpers.calibrations import small_calibration
from helpers.foreign_bodies import spoil_bytes, spoil_json
from helpers.results import takeover, write_results
from helpers.run_dirs import kill_run, make_sample, plant
from lm_eval_takeover.calibration.files import compute_checksum, read_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.lab.analyze.inputs import Inputs
from lm_eval_takeover.lab.analyze.tables import make_tables
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.effects import EXAMPLES
from lm_eval_takeover.lab.report.building import list_columns, list_rows, read_scores
from lm_eval_takeover.lab.report.inputs import EFFECT_CAPTIONS, Analysis, read_effects, read_figure
from lm_eval_takeover.lab.report.story import _tell_flips, tell_accuracy
from lm_eval_takeover.runs import journal
from lm_eval_takeover.runs.evidence import list_score_columns
from lm_eval_takeover.runs.parquet import TRACE_SCHEMA
from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of

TASKS = ("takeover_gsm8k", "takeover_math500")


def make_sound(folder: Path) -> None:
    """One sound file of each kind."""
    run = takeover()
    write_results(folder / "results", {TASKS[0]: [8, 5, 2, 0, 3], TASKS[1]: [1, 4, 4, 8]}, run=run)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(["regress", str(folder / "results"), "--baseline", str(folder / "baseline.json"), "--update"])
        write_calibration(small_calibration(), folder / "calibration.json")
        for number, policy in enumerate(("base", "disagreement")):
            _write_random_run(folder / policy, policy, number, docs=4, taken={3: 7, 9: 1} if number else {})
        write_random_scores(folder / "base")
        write_analysis(folder / "analysis", folder / "base", folder / "disagreement")
    (folder / "effects").mkdir()
    for name in EFFECT_CAPTIONS:
        shutil.copy(folder / "analysis" / "budget.svg", folder / "effects" / f"{name}.svg")
    side = {"token": " 4", "behind": [{"text": "so 4", "correct": True}]}
    position = {"task": TASKS[0], "doc_id": 0, "sample": 0, "position": 3, "effect": 0.5, "low": 0.1, "high": 0.9,
                "before": "2 + 2 =", "host": side, "donor": side}  # fmt: skip
    content = {"run": "guided", "host": "base", "donor": "guide", "after": "base", "positions": [position]}
    (folder / "effects" / EXAMPLES).write_text(json.dumps(content))


SCORES = ("ce", "rkl", "entropy", "js")


def _write_random_run(folder, policy, number, docs, taken=(), rate=None):
    rng = random.Random(number)
    rollouts = {(TASKS[0], doc, sample): ([rng.randrange(50) for _ in range(30)], dict(taken), rng.random() < 0.5, str(number))
                for doc in range(docs) for sample in range(2)}  # fmt: skip
    problems = {(TASKS[0], doc): (f"problem {doc}", str(doc)) for doc in range(docs)}
    write_run(folder, policy, rollouts, problems, rate=rate)


def write_random_scores(folder: Path, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    texts = {one.stored.key: one.stored.tokens for one in read_run_folder(folder).stored_samples()}
    columns = {key: {name: rng.integers(1, 6, count) for name in list_score_columns(SCORES)} for key, count in texts.items()}
    score_run(folder, columns, SCORES)


# What a stranger changes


def _spoil_file(path: Path, rng: random.Random, sign=lambda content: content) -> None:
    """Its bytes; or a value of it, or of one of its lines, signed again."""
    if path.suffix == ".svg" or rng.random() < 0.25:
        return path.write_bytes(spoil_bytes(path.read_bytes(), rng))
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = rng.randrange(len(lines))
    content = spoil_json(json.loads(lines[at]), rng)
    with contextlib.suppress(Exception):
        content = sign(content)
    lines[at] = json.dumps(content)
    return path.write_text("\n".join(lines))


def _any_of(pattern, *sign):
    return lambda folder, rng: _spoil_file(rng.choice(sorted(folder.glob(pattern))), rng, *sign)


_CELLS = (None, 0, -1, 7, 2**62, 0.5, float("inf"), "", "x", "../../x.parquet", "000-000099.parquet", "\x1b[31m", "\U000e0041",
          b"", b"\xff\x00")  # fmt: skip


def _spoil_journal(folder, rng):
    run = folder / rng.choice(("base", "disagreement"))
    if rng.random() < 0.3:
        path = run / "journal-000.sqlite"
        path.write_bytes(spoil_bytes(path.read_bytes(), rng))
        return
    table = rng.choice(list(journal.COLUMNS))
    name, share = rng.choice(journal.COLUMNS[table]), rng.choice((0.2, 1))

    def change(value):
        if rng.random() > share:
            return value
        return json.dumps(spoil_json(json.loads(value), rng)) if name == "facts" else rng.choice(_CELLS)

    with contextlib.suppress(sqlite3.Error):  # what SQLite itself refuses
        plant(run, table, **{name: change})


def _spoil_evidence(run, kind):
    """Packed columns in a journal, or the lines before them, with the right digests."""

    def spoil(folder, rng):
        share = rng.choice((0.2, 1))

        def change(content):
            if rng.random() > share:
                return content
            line, _, packed = content.partition(b"\n")
            columns = pa.decompress(packed, 30 * (29 if kind == "trace" else 4 * len(list_score_columns(SCORES))), "zstd", True)
            if rng.random() < 0.5:
                line = spoil_bytes(line, rng) if rng.random() < 0.3 else json.dumps(spoil_json(json.loads(line), rng)).encode()
            else:
                columns = spoil_bytes(columns, rng)
            return line + b"\n" + (spoil_bytes(packed, rng) if rng.random() < 0.2 else pa.compress(columns, "zstd", True))

        plant(folder / run, "evidence", f"kind = '{kind}'", content=change)

    return spoil


# How our commands read


def _read_results(folder):
    extras = ["--columns", "intervals", "maj8", "truncated", "task_rate", "cost"]
    main(["leaderboard", str(folder / "results"), *extras])
    main(["regress", str(folder / "results"), "--baseline", str(folder / "new.json"), "--update"])


def _read_runs(folder):
    runs = [folder / "base", folder / "disagreement"]
    inputs = Inputs.name(read_run_folders(runs), None)
    make_tables(inputs, tuple(COLUMNS), 0.1)
    for run in inputs.runs.values():
        run.find_prompt(run.answered[0])
        list(run.read_traces(["token_id", "chosen_from", "host_token_id"]))
    read_scores(inputs.scored, inputs.scored.answered, "ce")


def _read_traces(folder):
    _read_runs(folder)
    list(read_run_folder(folder / "disagreement").read_traces(TRACE_SCHEMA.names))
    for path in (folder / "disagreement" / "traces").iterdir():
        path.unlink()
    RunWriter(folder / "disagreement").close()  # which writes them again


def _read_analysis(folder):
    found = Analysis.read(folder / "analysis")
    rows = list_rows(found)
    _ = list_columns(found, rows), tell_accuracy(found, {row.run: row for row in rows})
    _ = found.base, found.compared, found.problems, [_tell_flips(row, "base") for row in found.read_table("flips")]


KINDS = {
    "results": (_any_of("results/*"), _read_results),
    "calibration": (
        _any_of("calibration.json", lambda c: c | {"checksum": compute_checksum(c)}),
        lambda folder: [s.threshold(0.03) for s in read_calibration(folder / "calibration.json").scores.values()],
    ),
    "journal": (_spoil_journal, _read_runs),
    "trace": (_spoil_evidence("disagreement", "trace"), _read_traces),
    "scores": (_spoil_evidence("base", "score"), _read_runs),
    "baseline": (
        _any_of("baseline.json", lambda c: c | {"checksum": digest_of(c | {"checksum": ""})}),
        lambda folder: main(
            ["regress", str(folder / "results"), "--baseline", str(folder / "baseline.json"), "--format", "json"]
        ),
    ),
    "svg": (_any_of("analysis/budget.svg"), lambda folder: read_figure(folder / "analysis" / "budget.svg")),
    "effects": (_any_of(f"effects/{EXAMPLES}"), lambda folder: read_effects(folder / "effects")),
    "analysis": (_any_of("analysis/*.json"), _read_analysis),
}


def try_one(kind: str, sound: Path, scratch: Path, seed: int) -> None:
    """Read a copy of the sound files in which the kind's one was changed by this seed."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(sound, scratch)
    spoil, read = KINDS[kind]
    spoil(scratch, random.Random(f"{kind} {seed}"))
    silent = io.StringIO()
    with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read(scratch)


# Two runs, of which files of one are copied over those of the other

SIDES = {"ours": None, "theirs": 0.3}  # the rate makes it another run


def make_runs(folder: Path) -> list[dict[tuple, set[str]]]:
    """Each run twice: finished, and killed, with a log of its journal. Of each what readers may find."""
    for number, (side, rate) in enumerate(SIDES.items()):
        _write_random_run(folder / side, "base", number, docs=2, rate=rate)
        write_random_scores(folder / side, number)
        killed = RunWriter(shutil.copytree(folder / side, folder / f"{side}, killed"))
        (command,) = killed.journal.commands()
        killed.command = command
        killed.journal.begin_command(command, killed.journal.attempts(command)[0][0])
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
    with contextlib.suppress(TakeoverError):
        for one, columns in run.read_traces(TRACE_SCHEMA.names):
            found["trace", one.stored.key] = repr({name: column.tolist() for name, column in columns.items()})
    with contextlib.suppress(TakeoverError):
        for key, columns in read_scores(run, texts.values(), "ce").items():
            found["scores", key] = repr({name: column.tolist() for name, column in columns.items()})
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
        if _judge(read_all(scratch), truth) == "silent":
            outcome = "silent"
    return outcome


def _judge(found: dict, truth: list[dict[tuple, set[str]]]) -> str:
    return "read" if any(all(value in known[key] for key, value in found.items()) for known in truth) else "silent"
