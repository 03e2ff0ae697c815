"""Calibration files on disk: written whole or not at all, checked field by field when read, found by name or pair."""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lm_eval_takeover.calibration import (
    GRID,
    HIGHEST,
    KAPPA_RULES,
    LOWEST,
    SCHEMA,
    TABLE,
    TOLERANCE,
    Calibration,
    ScoreCalibration,
    Target,
)
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError, nearest
from lm_eval_takeover.model_id import ModelId
from lm_eval_takeover.resources import data_folder
from lm_eval_takeover.scores import SCORES

Part = TypeVar("Part")
MOST_OF_GRID = sum(LOWEST <= rho <= HIGHEST for rho in GRID)  # points that every sketch has


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write(calibration: Calibration, path: Path) -> None:
    """Write a calibration file; an old one stays until the new one is whole."""
    content = {"schema": SCHEMA, **{k: v for k, v in asdict(calibration).items() if k not in ("schema", "name")}}
    content = json.loads(json.dumps(content | {"checksum": ""}, allow_nan=False))
    text = json.dumps(content | {"checksum": _checksum(content)}, indent=2, ensure_ascii=False)
    # Each list of numbers on one line; inside a string there is no line break.
    text = re.sub(r"\[\n([-+.\deE,\s]+)\n\s*\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    write_text(path, text + "\n")


def _checksum(content: dict[str, Any]) -> str:
    """A digest of everything but the notes, which people may write."""
    signed = {name: value for name, value in content.items() if name not in ("checksum", "notes")}
    return f"sha256:{hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()}"


def read(path: Path) -> Calibration:
    """Read and check one calibration file. Raises CalibrationError that names the file and the field."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise CalibrationError(f"calibration file '{path}' does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CalibrationError(f"calibration file '{path}' cannot be read: {error}; make it anew") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise CalibrationError(f"calibration file '{path}' has no field 'schema'; it is not a calibration file")
    try:
        schema = _whole("field 'schema'", content["schema"], 1)
        if schema > SCHEMA:
            raise CalibrationError(
                f"calibration file '{path}': schema={schema} is newer than {SCHEMA}, which this version reads; upgrade "
                f"lm-eval-takeover"
            )
        return _calibration(content, path.stem)
    except CalibrationError:
        raise
    except Exception as error:  # whatever a hand-edited file can hold
        raise CalibrationError(f"calibration file '{path}' is damaged: {error}; make it anew") from error


_REQUIRED = ("base", "guide", "vocabulary", "direction", "source")


def _calibration(content: dict[str, Any], name: str) -> Calibration:
    """The content of a file, every field checked. Raises ValueError with the field."""
    known = {one.name for one in fields(Calibration)} - {"name"}
    if unknown := sorted(content.keys() - known - {"checksum"}):
        raise ValueError(f"field '{unknown[0]}' is not known; {nearest(unknown[0], known)}")
    required = (*_REQUIRED, *(("checksum",) if content["schema"] > 1 else ()))
    if missing := [one for one in required if one not in content]:
        raise ValueError(f"field '{missing[0]}' is missing")
    parts = dict(content)
    checksum = parts.pop("checksum", None)
    for role in ("base", "guide"):
        parts[role] = _model_id(role, parts[role])
    scores = _mapping("field 'scores'", parts.pop("scores", {}))
    columns = _mapping("field 'columns'", parts.get("columns", {}))
    parts["scores"] = {score: _score(score, values) for score, values in scores.items()}
    parts["targets"] = tuple(
        _target(at, one) for at, one in enumerate(_list("field 'targets'", parts.pop("targets", [])))
    )
    made = Calibration(**parts, name=name)
    if made.direction not in ("forward", "reverse"):
        raise ValueError(f"field 'direction' is not known: {made.direction}")
    if made.source not in ("measured", "published"):
        raise ValueError(f"field 'source' is not known: {made.source}")
    filled = "columns" if made.source == "published" else "scores"
    if not getattr(made, filled):
        raise ValueError(f"field '{filled}' is empty")
    if made.source == "measured" or made.vocabulary is not None:
        digest = _mapping("field 'vocabulary'", made.vocabulary).get("digest")
        if not isinstance(digest, str):
            raise ValueError("field 'vocabulary.digest' is missing")
    if made.source == "measured":
        for count in ("rollouts", "tokens", "window"):
            _whole(f"field '{count}'", getattr(made, count), 1)
        for one in ("prompts", "decoding"):
            _mapping(f"field '{one}'", getattr(made, one))
    for score, rows in columns.items():
        _columns(score, rows, made.default_row)
    if checksum is not None and checksum != _checksum(content):
        raise ValueError("field 'checksum' does not fit: the file was edited after it was written")
    return made


def _number(name: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= min(high, 1e300):
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a number in {low:g}..{high:g}")
    return float(value)


def _whole(name: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise ValueError(f"{name} is {str(value)[:40]!r}, not a whole number of at least {low}")
    return value


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is {type(value).__name__}, not a list")
    return value


def _model_id(role: str, value: Any) -> ModelId:
    made = _part(f"field '{role}'", ModelId, value)
    if not isinstance(made.id, str) or not isinstance(made.revision, str | None):
        raise ValueError(f"field '{role}' is damaged")
    return made


def _columns(score: str, rows: Any, default: str | None) -> None:
    listed = _mapping(f"field 'columns.{score}'", rows)
    if (default or next(iter(listed), None)) not in listed:
        raise ValueError(f"field 'columns.{score}' has no row '{default}'")
    widths = {len(_list(f"field 'columns.{score}.{row}'", cells)) for row, cells in listed.items()}
    if len(widths) != 1 or 0 in widths:
        raise ValueError(f"field 'columns.{score}' has rows of other lengths")
    for row, cells in listed.items():
        for at, cell in enumerate(cells):
            for key in ("tau", "kappa"):
                where = f"field 'columns.{score}.{row}[{at}].{key}'"
                _number(where, _mapping(where, cell).get(key))


def _mapping(name: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{name} is {type(values).__name__}, not an object")
    return values


def _part(name: str, kind: type[Part], values: Any) -> Part:
    """`values` as this dataclass. Raises ValueError with the field that is missing or not known."""
    expected = {one.name: one.default is MISSING for one in fields(kind)}  # type: ignore[arg-type]
    for given in _mapping(name, values):
        if given not in expected:
            raise ValueError(f"{name[:-1]}.{given}' is not known")
    for wanted, required in expected.items():
        if required and wanted not in values:
            raise ValueError(f"{name[:-1]}.{wanted}' is missing")
    return kind(**values)


def _score(name: str, values: Any) -> ScoreCalibration:
    where = f"field 'scores.{name}'"
    if name not in SCORES:
        raise ValueError(f"{where} is no score; known: {', '.join(SCORES)}")
    held = _part(where, ScoreCalibration, values)
    sketch = _mapping(f"{where[:-1]}.sketch'", held.sketch)
    columns = []
    for column in ("rho", "tau", "tail_mean"):
        at = f"{where[:-1]}.sketch.{column}'"
        columns.append(np.array([_number(at, one) for one in _list(at, sketch.get(column))]))
    rho, tau, tail = columns
    sound = len(rho) == len(tau) == len(tail) >= MOST_OF_GRID and (np.diff(rho) > 0).all() and (np.diff(tau) <= 0).all()
    if not sound or not 0 < rho[0] <= LOWEST or not HIGHEST <= rho[-1] < 1 or (tail < tau * (1 - 1e-9)).any():
        raise ValueError(f"field 'scores.{name}.sketch' is damaged")
    mean = _number(f"{where[:-1]}.mean'", held.mean)
    _number(f"{where[:-1]}.rank_error'", held.rank_error, 0.0, 1.0)
    if mean == 0 and tau.max() > 0:
        raise ValueError(f"field 'scores.{name}.mean' is 0")
    table = _list(f"{where[:-1]}.table'", held.table)
    made = replace(held, table=tuple(table))
    if [row.get("rho") if isinstance(row, dict) else None for row in table] != list(TABLE):
        raise ValueError(f"field 'scores.{name}.table' has other spike ratios than {', '.join(map(str, TABLE))}")
    for row in table:  # for people; what a run uses is the sketch, and an edited table would mislead
        for key, expected in asdict(made.threshold(row["rho"])).items():
            found = _number(f"{where[:-1]}.table[rho={row['rho']}].{key}'", row.get(key))
            if not math.isclose(found, expected, rel_tol=1e-6):
                raise ValueError(f"field 'scores.{name}.table' has another {key} at rho={row['rho']} than its sketch")
        for share in (key for key in row if key.startswith("share_")):
            _number(f"{where[:-1]}.table[rho={row['rho']}].{share}'", row[share], 0.0, 1.0)
    return made


def _target(at: int, values: Any) -> Target:
    where = f"field 'targets[{at}]"
    target = _part(f"{where}'", Target, values)
    for name in ("prompts", "tokens", "window"):
        _whole(f"{where}.{name}'", getattr(target, name), 1)
    _number(f"{where}.spike_ratio'", target.spike_ratio, LOWEST, HIGHEST)
    asked = _number(f"{where}.target_rate'", target.target_rate, 0.0, 1.0)
    if abs(_number(f"{where}.realized_rate'", target.realized_rate, 0.0, 1.0) - asked) > TOLERANCE + 1e-9:
        raise ValueError(f"{where}.realized_rate' is not within {TOLERANCE} of target_rate={asked}")
    for name, known in (("score", SCORES), ("kappa_rule", KAPPA_RULES)):
        if getattr(target, name) not in known:
            raise ValueError(f"{where}.{name}' is not known: {getattr(target, name)}")
    return target


def packaged() -> dict[str, Path]:
    """The calibration files that ship with the package, by name."""
    return {path.stem: path for path in sorted(data_folder("calibration").glob("*.json"))}


def find(name: str) -> tuple[Calibration, int | None]:
    """A packaged name or a path, with the column of `NAME:COLUMN`."""
    known = packaged()
    if name in known:
        return read(known[name]), None
    if Path(name).exists():
        return read(Path(name)), None
    stem, _, column = name.rpartition(":")
    if stem and column.isdecimal():
        return find(stem)[0], int(column)
    raise CalibrationError(
        f"calibration='{name}' is neither a file nor a packaged calibration ({', '.join(known)}); {nearest(name, known)}"
    )


def command_for(base: str | None, guide: str | None, direction: str) -> str:
    """The command that makes a calibration for this pair; None stands for the bundled one."""
    pair, prompts = f" --base {base} --guide {guide}", "openai/gsm8k:main"
    if base is None or guide is None:
        pair, prompts = "", str(CALIBRATION_PROMPTS)
    reverse = " --direction reverse" if direction == "reverse" else ""
    return f"lm-eval-takeover calibrate{pair}{reverse} --prompts {prompts} --out my-pair.json"


def matching(files: Iterable[Path], base: ModelId, guide: ModelId, direction: str) -> list[Calibration]:
    """The calibrations among `files` that were made for this pair and direction."""
    found = [read(path) for path in files]
    return [c for c in found if made_for(c, base, guide) and c.direction == direction]


def made_for(calibration: Calibration, base: ModelId, guide: ModelId) -> bool:
    """Whether a calibration's pair is this one."""
    return base.same_model(calibration.base) and guide.same_model(calibration.guide)
