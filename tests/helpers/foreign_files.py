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
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from helpers.analyses import write_analysis, write_run
from helpers.calibrations import small_calibration
from helpers.foreign_bodies import spoil_bytes, spoil_json
from helpers.results import takeover, write_results
from helpers.run_dirs import kill_run, make_sample, plant
from lm_eval_takeover.calibration.files import compute_checksum, read_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import TakeoverError
from lm_eval_takeover.lab import score_files as scored
from lm_eval_takeover.lab.analyze.inputs import Inputs
from lm_eval_takeover.lab.analyze.tables import make_tables
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.effects import EXAMPLES
from lm_eval_takeover.lab.report.building import list_columns, list_rows, read_scores
from lm_eval_takeover.lab.report.inputs import EFFECT_CAPTIONS, Analysis, read_effects, read_figure
from lm_eval_takeover.lab.report.story import _tell_flips, tell_accuracy
from lm_eval_takeover.lab.score_files import make_schema
from lm_eval_takeover.runs import journal
from lm_eval_takeover.runs.parquet import DIGEST, TRACE_SCHEMA, seal
from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders
from lm_eval_takeover.runs.run_writer import RunWriter
from lm_eval_takeover.storage.digests import digest_of

TASKS = ("takeover_gsm8k", "takeover_math500")
_METADATA = b"takeover_scores"


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
    content = {"run": "guided", "after": "base", "positions": [position]}
    (folder / "effects" / EXAMPLES).write_text(json.dumps(content))


SCORES = ("ce", "rkl", "entropy", "js")


def _write_random_run(folder, policy, number, docs, taken=(), rate=None):
    rng = random.Random(number)
    rollouts = {(TASKS[0], doc, sample): ([rng.randrange(50) for _ in range(30)], dict(taken), rng.random() < 0.5, str(number))
                for doc in range(docs) for sample in range(2)}  # fmt: skip
    problems = {(TASKS[0], doc): (f"problem {doc} of {number}", str(number)) for doc in range(docs)}
    write_run(folder, policy, rollouts, problems, rate=rate)


def write_random_scores(folder: Path, seed: int = 0, files: int = 1) -> None:
    rng = np.random.default_rng(seed)
    schema = make_schema(SCORES)
    samples = {}
    for one in read_run_folder(folder).stored_samples():
        count = one.stored.tokens
        values = {field.name: rng.random(count).astype(np.float32) if pa.types.is_floating(field.type)
                  else rng.integers(1, 6, count).astype(np.int32) for field in schema}  # fmt: skip
        values["token_id"] = np.arange(count, dtype=np.int32)
        samples[one.stored.key] = scored.SampleTokens(one.stored_name, values)
    model = {"id": "some/base", "revision": None, "dtype": "torch.float32"}
    for number in range(files):
        part = dict(list(samples.items())[number::files])
        scored.write_scores(folder, scored.ScoresHeader(model, model, dict.fromkeys(SCORES)), part)


# What a stranger changes


def _spoil_file(path: Path, rng: random.Random, sign=lambda content: content) -> None:
    """Its bytes; or a value of it, or of one of its lines, signed again."""
    if path.suffix == ".parquet":
        return spoil_parquet(path, rng)
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


def _spoil_trace(folder, rng):
    """Traces in a journal, with the right checksums."""
    path = folder / "disagreement" / "journal-000.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute("SELECT key, trace FROM traces").fetchall()
        for key, blob in rng.sample(rows, rng.choice((1, len(rows)))):
            line, _, packed = blob[8:].partition(b"\n")
            columns = pa.decompress(packed, 30 * 29, "zstd", asbytes=True)
            if rng.random() < 0.5:
                line = rng.choice((spoil_bytes(line, rng), b"", b"s base guide -7", b"s base guide 999999999999"))
            else:
                columns = spoil_bytes(columns, rng)
            packed = spoil_bytes(packed, rng) if rng.random() < 0.2 else pa.compress(columns, "zstd", asbytes=True)
            trace = journal.add_checksum(key, line + b"\n" + packed)
            connection.execute("UPDATE traces SET trace = ? WHERE key = ?", (trace, key))


def spoil_parquet(path: Path, rng: random.Random) -> None:
    """Bytes of the file; or a column lost, doubled or of other values and types; or its metadata."""
    if rng.random() < 0.3:
        path.write_bytes(spoil_bytes(path.read_bytes(), rng))
        return
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    at, count = table.column_names.index(name), len(table)
    metadata = dict(table.schema.metadata or {})
    match rng.randrange(8):
        case 0:
            table = table.drop([name])
        case 1:
            table = table.slice(0, rng.choice((0, 1, count // 2)))
        case 2:
            table = pa.concat_tables([table, table])
        case 3 if _METADATA in metadata:
            metadata[_METADATA] = json.dumps(spoil_json(json.loads(metadata[_METADATA]), rng)).encode()
        case 4:
            table = table.take(pa.array(rng.sample(range(count), count)))
        case _:
            value = rng.choice((None, "\x1b[31m", [1], {"a": 1}, b"\xff", True, 0, -1, 2**31 - 1, 2**62, -3.5, np.nan, np.inf))
            new = pa.array([value if rng.random() < 0.9 else None for _ in range(count)])
            table = table.set_column(at, name, new)
    table = table.replace_schema_metadata({**metadata, DIGEST: "0" * 32})
    pq.write_table(table, path, row_group_size=rng.choice((7, 100, 10**6)))
    content = bytearray(path.read_bytes())
    seal(content)
    path.write_bytes(content)


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
        for _, table in run.read_traces(["token_id", "chosen_from", "host_token_id"]):
            table.to_pylist()
    base = inputs.scored
    read_scores(base, {one.stored.key: one for one in base.stored_samples()}, "ce")


def _read_traces(folder):
    _read_runs(folder)
    for _, table in read_run_folder(folder / "disagreement").read_traces(TRACE_SCHEMA.names):
        table.to_pylist()
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
    "trace": (_spoil_trace, _read_traces),
    "scores": (_any_of("base/scores/*.parquet"), _read_runs),
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
        write_random_scores(folder / side, number, files=number + 1)
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
        if _judge(read_all(scratch), truth) == "silent":
            outcome = "silent"
    return outcome


def _judge(found: dict, truth: list[dict[tuple, set[str]]]) -> str:
    return "read" if any(all(value in known[key] for key, value in found.items()) for known in truth) else "silent"
