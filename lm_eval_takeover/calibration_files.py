"""Calibration files on disk: written whole or not at all, checked field by field when read, found by name or pair."""

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

from lm_eval_takeover.calibration import HIGHEST, LOWEST, SCHEMA, Calibration, ScoreCalibration, Target
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError, nearest
from lm_eval_takeover.model_id import ModelId
from lm_eval_takeover.resources import data_folder
from lm_eval_takeover.scores import SCORES

Part = TypeVar("Part")


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
    # Indented JSON with each list of numbers on one line.
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    write_text(path, re.sub(r"\[([-+.\deE,\s]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n")


def read(path: Path) -> Calibration:
    """Read and check one calibration file. Raises CalibrationError that names the file and the field."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise CalibrationError(f"calibration file '{path}' does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CalibrationError(f"calibration file '{path}' cannot be read: {error}; make it anew") from error
    if not isinstance(content, dict) or not isinstance(content.get("schema"), int):
        raise CalibrationError(f"calibration file '{path}' has no field 'schema'; it is not a calibration file")
    if content["schema"] > SCHEMA:
        raise CalibrationError(
            f"calibration file '{path}': schema={content['schema']} is newer than {SCHEMA}, which this version reads; "
            f"upgrade lm-eval-takeover"
        )
    known = {one.name for one in fields(Calibration)} - {"name"}
    if unknown := sorted(content.keys() - known):
        raise CalibrationError(
            f"calibration file '{path}': field '{unknown[0]}' is not known; {nearest(unknown[0], known)}"
        )
    if missing := sorted({"base", "guide", "vocabulary"} - content.keys()):
        raise CalibrationError(f"calibration file '{path}' is damaged: field '{missing[0]}' is missing; make it anew")
    try:
        base, guide = (_part(f"field '{role}'", ModelId, content.pop(role)) for role in ("base", "guide"))
        scores = {
            name: _score(name, values) for name, values in _mapping("field 'scores'", content.pop("scores", {})).items()
        }
        targets = tuple(_target(number, values) for number, values in enumerate(content.pop("targets", ())))
        made = Calibration(base, guide, **content, scores=scores, targets=targets, name=path.stem)
        _check_pair(made)
        return made
    except (TypeError, KeyError, ValueError, AttributeError) as error:  # whatever a hand-edited file can hold
        raise CalibrationError(f"calibration file '{path}' is damaged: {error}; make it anew") from error


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
    field_ = f"field 'scores.{name}'"
    held = _part(field_, ScoreCalibration, values)
    if name not in SCORES:
        raise ValueError(f"{field_} is no score; known: {', '.join(SCORES)}")
    try:
        rho, tau, tail = columns = [
            np.asarray(held.sketch[column], dtype=np.float64) for column in ("rho", "tau", "tail_mean")
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(f"field 'scores.{name}.sketch' is damaged") from None
    sound = len(rho) == len(tau) == len(tail) > 0 and all(np.isfinite(column).all() for column in columns)
    ordered = sound and (np.diff(rho) > 0).all() and (np.diff(tau) <= 0).all()
    if (
        not ordered
        or not 0 < rho[0] <= LOWEST
        or not HIGHEST <= rho[-1] < 1
        or tau.min() < 0
        or (tail < tau * (1 - 1e-9)).any()
    ):
        raise ValueError(f"field 'scores.{name}.sketch' is damaged")
    for number in ("mean", "rank_error"):
        value = getattr(held, number)
        if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"field 'scores.{name}.{number}' is {value}")
    if held.mean == 0 and tau.max() > 0:
        raise ValueError(f"field 'scores.{name}.mean' is {held.mean}")
    if not isinstance(held.table, list) or not all(isinstance(row, dict) and "rho" in row for row in held.table):
        raise ValueError(f"field 'scores.{name}.table' is damaged")
    made = replace(held, table=tuple(held.table))
    for row in held.table:  # for people; what a run uses is the sketch, and an edited table would mislead
        expected = asdict(made.threshold(row["rho"]))
        wrong = next(
            (key for key in expected if not math.isclose(row.get(key, math.nan), expected[key], rel_tol=1e-6)), None
        )
        if wrong:
            raise ValueError(f"field 'scores.{name}.table' has another {wrong} at rho={row['rho']} than its sketch")
    return made


def _target(number: int, values: Any) -> Target:
    target = _part(f"field 'targets[{number}]'", Target, values)
    if not 0 < target.target_rate < 1 or not LOWEST <= target.spike_ratio <= HIGHEST:
        raise ValueError(f"field 'targets[{number}]' is damaged")
    return target


def _check_pair(made: Calibration) -> None:
    for role, model in (("base", made.base), ("guide", made.guide)):
        if not isinstance(model.id, str) or not isinstance(model.revision, str | None):
            raise ValueError(f"field '{role}' is damaged")
    if made.vocabulary is not None and not isinstance(made.vocabulary.get("digest"), str):
        raise ValueError("field 'vocabulary' is damaged")
    if made.direction not in ("forward", "reverse") or made.source not in ("measured", "published"):
        raise ValueError(f"field 'direction' or 'source' is not known: {made.direction}, {made.source}")
    if made.source == "published" and not made.columns:
        raise ValueError("field 'columns' is empty")
    for score, rows in made.columns.items():
        if (made.default_row or next(iter(rows), None)) not in rows:
            raise ValueError(f"field 'columns.{score}' has no row '{made.default_row}'")
        for row, cells in rows.items():
            if not cells or not all(float(cell["tau"]) >= 0 and float(cell["kappa"]) >= 0 for cell in cells):
                raise ValueError(f"field 'columns.{score}.{row}' is damaged")


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
