"""Files as a stranger may send them: sound ones of each kind, then changed at random, and the commands that read them.

    make_sound(folder)        what all kinds need, once
    spoil(kind, folder, rng)  changes the kind's file in a copy of that folder
    read(kind, folder)        as our commands do; returns, or raises a TakeoverError

Checksums are made to fit again, as a stranger can do: else nothing behind them would be tried.
"""

import contextlib
import io
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
from helpers.results import takeover, write_results
from helpers.spoiling import spoil_bytes, spoil_json
from lm_eval_takeover.calibration.files import compute_checksum, read_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.lab import score_files as scored
from lm_eval_takeover.lab.analyze.inputs import Inputs
from lm_eval_takeover.lab.analyze.tables import make_tables
from lm_eval_takeover.lab.measures.catalogue import COLUMNS
from lm_eval_takeover.lab.measures.effects import EXAMPLES
from lm_eval_takeover.lab.report.building import list_rows, read_scores, summarize_tasks
from lm_eval_takeover.lab.report.inputs import EFFECT_CAPTIONS, Analysis, read_effects, read_figure
from lm_eval_takeover.lab.score_files import make_schema
from lm_eval_takeover.runs import journal
from lm_eval_takeover.runs.parquet import DIGEST, seal
from lm_eval_takeover.runs.parquet import TRACE_SCHEMA as TRACED
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
        rng = random.Random(0)
        for policy in ("base", "disagreement"):
            rollouts = {
                (TASKS[0], doc, sample): ([rng.randrange(50) for _ in range(30)], {} if policy == "base" else {3: 7, 9: 1},
                                          rng.random() < 0.5, "1")
                for doc in range(4) for sample in range(2)
            }  # fmt: skip
            problems = {(TASKS[0], doc): (f"problem {doc}", "1") for doc in range(4)}
            write_run(folder / policy, policy, rollouts, problems)
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
    if rng.random() < 0.25:
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
    path = folder / rng.choice(("base", "disagreement")) / "journal-000.sqlite"
    if rng.random() < 0.3:
        path.write_bytes(spoil_bytes(path.read_bytes(), rng))
        return
    with closing(sqlite3.connect(path)) as connection, connection:
        table = rng.choice(list(journal.COLUMNS))
        columns = journal.COLUMNS[table]
        rows = connection.execute(f"SELECT rowid, {', '.join(columns)} FROM {table}").fetchall()
        for rowid, *row in rng.sample(rows, rng.choice((1, len(rows)))):
            at = rng.randrange(len(columns))
            if columns[at] == "facts":
                row[at] = json.dumps(spoil_json(json.loads(row[at]), rng))
            else:
                row[at] = rng.choice(_CELLS)
            new = dict(zip(columns, row, strict=True)) | {"digest": journal.row_digest(row)}
            with contextlib.suppress(sqlite3.Error):  # what SQLite itself refuses
                marks = ", ".join(f"{name} = ?" for name in new)
                connection.execute(f"UPDATE {table} SET {marks} WHERE rowid = ?", [*new.values(), rowid])


def _spoil_trace(folder, rng):
    """Traces in a journal, with the right checksums."""
    path = folder / "disagreement" / "journal-000.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        rows = connection.execute("SELECT key, trace FROM traces").fetchall()
        for key, blob in rng.sample(rows, rng.choice((1, len(rows)))):
            line, _, packed = blob[8:].partition(b"\n")
            columns = pa.decompress(packed, 30 * 29, "zstd", asbytes=True)
            match rng.randrange(4):
                case 0:
                    line = spoil_bytes(line, rng)
                case 1:
                    line = rng.choice((b"", b"a b c 7", b"s base guide -7", b"s base guide 999999999999", b"s base guide 10 3"))
                case 2:
                    columns = spoil_bytes(columns, rng)
                case 3:
                    columns = rng.randbytes(len(columns))
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
            new = rng.choice((
                pa.nulls(count, pa.int32()), pa.nulls(count), pa.array(["\x1b[31m"] * count), pa.array([[1]] * count),
                pa.array([-1] * count), pa.array([2**31 - 1] * count), pa.array([2**62] * count), pa.array([0] * count),
                pa.array([float("nan")] * count), pa.array([-3.5] * count), pa.array([float("inf")] * count),
                pa.array([{"a": 1}] * count), pa.array([b"\xff"] * count), pa.array([True] * count),
                pa.array([rng.randrange(-5, 5) for _ in range(count)]), pa.array([None if i % 3 else 1 for i in range(count)]),
            ))  # fmt: skip
            table = table.set_column(at, name, new)
    pq.write_table(
        table.replace_schema_metadata({**metadata, DIGEST: "0" * 32}), path, row_group_size=rng.choice((7, 100, 10**6))
    )
    content = bytearray(path.read_bytes())
    seal(content)
    path.write_bytes(content)


def _spoil_svg(folder, rng):
    path = folder / "analysis" / "budget.svg"
    text = path.read_text()
    at = rng.randrange(len(text))
    piece = rng.choice((
        "<g>" * 3000, "<!-- -->", "<script>x</script>", '<!DOCTYPE svg [<!ENTITY a "b">]>', "&a;", "&#0;", "<svg", "]]>",
        "<?x y?>", ' style="font: 3e9px x"', ' id="', 'xmlns="x"', "\x00", "\ud7ff", "<use href='#a'/>", "<a:b/>",
    ))  # fmt: skip
    changed = text[:at] + piece + text[at:]
    path.write_bytes(spoil_bytes(path.read_bytes(), rng) if rng.random() < 0.5 else changed.encode())


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
    for _, table in read_run_folder(folder / "disagreement").read_traces(TRACED.names):
        table.to_pylist()
    for path in (folder / "disagreement" / "traces").iterdir():
        path.unlink()
    RunWriter(folder / "disagreement").close()  # which writes them again


def _read_analysis(folder):
    found = Analysis.read(folder / "analysis")
    list_rows(found, summarize_tasks(found))
    _ = found.base, found.reference, found.compared, found.problems


KINDS = {
    "results": (_any_of("results/*"), _read_results),
    "calibration": (
        _any_of("calibration.json", lambda c: c | {"checksum": compute_checksum(c)}),
        lambda folder: [s.threshold(0.03) for s in read_calibration(folder / "calibration.json").scores.values()],
    ),
    "journal": (_spoil_journal, _read_runs),
    "trace": (_spoil_trace, _read_traces),
    "scores": (_any_of("base/scores/*.parquet"), _read_runs),
    "prompts": (_any_of("base/prompts.parquet"), _read_runs),
    "baseline": (
        _any_of("baseline.json", lambda c: c | {"checksum": digest_of(c | {"checksum": ""})}),
        lambda folder: main(
            ["regress", str(folder / "results"), "--baseline", str(folder / "baseline.json"), "--format", "json"]
        ),
    ),
    "svg": (_spoil_svg, lambda folder: read_figure(folder / "analysis" / "budget.svg")),
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
