"""Calibration files on disk: written whole or not at all, checked field by field when read, found by name or pair."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lm_eval_takeover.calibration.thresholds import (
    GRID,
    HIGHEST,
    KAPPA_RULES,
    LOWEST,
    SCHEMA,
    TABLE,
    Calibration,
    ScoreCalibration,
    Target,
)
from lm_eval_takeover.errors import CalibrationError, nearest
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.method.model_id import ModelId
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.storage.package_data import data_folder
from lm_eval_takeover.storage.regular_files import read_bounded
from lm_eval_takeover.storage.whole_files import write_text

Part = TypeVar("Part")
MOST_OF_GRID = sum(LOWEST <= rho <= HIGHEST for rho in GRID)  # points that every sketch has


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file; an old one stays until the new one is whole."""
    content = {"schema": SCHEMA, **{k: v for k, v in asdict(calibration).items() if k not in ("schema", "name")}}
    for held in content["scores"].values():
        for name in ("plugin", "signed"):
            if not held[name]:
                del held[name]
    content = json.loads(json.dumps(content | {"checksum": ""}, allow_nan=False))
    text = json.dumps(content | {"checksum": _compute_checksum(content)}, indent=2, ensure_ascii=False)
    # Each list of numbers on one line; inside a string there is no line break.
    text = re.sub(r"\[\n([-+.\deE,\s]+)\n\s*\]", lambda numbers: f"[{' '.join(numbers[1].split())}]", text)
    write_text(path, text + "\n")


def _compute_checksum(content: dict[str, Any]) -> str:
    """A digest of everything but the notes, which people may write."""
    signed = {name: value for name, value in content.items() if name not in ("checksum", "notes")}
    return f"sha256:{hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()}"


def read_calibration(path: Path) -> Calibration:
    """Read and check one calibration file. Raises CalibrationError that names the file and the field."""
    try:
        content = json.loads(read_bounded(path).decode())
    except FileNotFoundError:
        raise CalibrationError(f"calibration file '{path}' does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CalibrationError(f"calibration file '{path}' cannot be read: {error}; make a new one") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise CalibrationError(f"calibration file '{path}' has no field 'schema'; it is not a calibration file")
    try:
        schema = _check_whole_number("schema", content["schema"], 1)
        if schema > SCHEMA:
            raise CalibrationError(
                f"calibration file '{path}': schema={schema} is newer than {SCHEMA}, which this version reads; upgrade "
                f"lm-eval-takeover"
            )
        return _parse_calibration(content, path.stem)
    except CalibrationError:
        raise
    except Exception as error:  # whatever a hand-edited file can hold
        text = for_terminal(str(error), lines=False)
        raise CalibrationError(f"calibration file '{path}' is damaged: {text}; make a new one") from error


_REQUIRED = ("base", "guide", "vocabulary", "direction", "source")


def _parse_calibration(content: dict[str, Any], name: str) -> Calibration:
    """The content of a file, every field checked. Raises ValueError with the field."""
    known = {field.name for field in fields(Calibration)} - {"name"}
    if unknown := sorted(content.keys() - known - {"checksum"}):
        raise ValueError(f"field '{unknown[0]}' is not known; {nearest(unknown[0], known)}")
    required = (*_REQUIRED, *(("checksum",) if content["schema"] > 1 else ()))
    if missing := [field for field in required if field not in content]:
        raise ValueError(f"field '{missing[0]}' is missing")
    parts = dict(content)
    checksum = parts.pop("checksum", None)
    for role in ("base", "guide"):
        parts[role] = _parse_model_id(role, parts[role])
    scores = _check_object("scores", parts.pop("scores", {}))
    columns = _check_object("columns", parts.get("columns", {}))
    parts["diagnostic"] = tuple(_check_list("diagnostic", parts.get("diagnostic", [])))
    parts["scores"] = {score: _parse_score(score, values) for score, values in scores.items()}
    parts["targets"] = tuple(
        _parse_target(at, target, scores) for at, target in enumerate(_check_list("targets", parts.pop("targets", [])))
    )
    calibration = Calibration(**parts, name=name)
    if calibration.direction not in ("forward", "reverse"):
        raise ValueError(f"field 'direction' is not known: {calibration.direction}")
    if calibration.source not in ("measured", "published"):
        raise ValueError(f"field 'source' is not known: {calibration.source}")
    filled = "columns" if calibration.source == "published" else "scores"
    if not getattr(calibration, filled):
        raise ValueError(f"field '{filled}' is empty")
    if calibration.source == "measured" or calibration.vocabulary is not None:
        digest = _check_object("vocabulary", calibration.vocabulary).get("digest")
        if not isinstance(digest, str):
            raise ValueError("field 'vocabulary.digest' is missing")
    if calibration.source == "measured":
        for count in ("rollouts", "tokens", "window"):
            _check_whole_number(count, getattr(calibration, count), 1)
        for field in ("prompts", "decoding"):
            _check_object(field, getattr(calibration, field))
        if calibration.schema > 2:
            _check_conditions(calibration)
    for score, rows in columns.items():
        _check_columns(score, rows, calibration.default_row)
    if checksum is not None and checksum != _compute_checksum(content):
        raise ValueError("field 'checksum' does not fit: the file was edited after it was written")
    return calibration


def _check_conditions(calibration: Calibration) -> None:
    """What a run is compared with; files before schema 3 may leave it open."""
    prompts, decoding = calibration.prompts, calibration.decoding
    for path, value, kinds in (
        ("prompts.chat_template", prompts.get("chat_template"), (bool,)),
        ("prompts.enable_thinking", prompts.get("enable_thinking", ""), (bool, type(None))),
        ("dtypes.base", _check_object("dtypes", calibration.dtypes).get("base"), (str,)),
        ("dtypes.guide", calibration.dtypes.get("guide"), (str,)),
    ):
        if not isinstance(value, kinds):
            raise ValueError(f"field '{path}' is missing")
    for name in ("temperature", "top_p", "top_k"):
        _check_number(f"decoding.{name}", decoding.get(name))
    _check_whole_number("cut", calibration.cut, 0)


# What follows checks the value of one field, named by its path: `scores.ce.mean`.


def _check_number(path: str, value: Any, low: float = 0.0, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= min(high, 1e300):
        raise ValueError(f"field '{path}' is {str(value)[:40]!r}, not a number in {low:g}..{high:g}")
    return float(value)


def _check_whole_number(path: str, value: Any, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise ValueError(f"field '{path}' is {str(value)[:40]!r}, not a whole number of at least {low}")
    return value


def _check_list(path: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"field '{path}' is {type(value).__name__}, not a list")
    return value


def _parse_model_id(role: str, value: Any) -> ModelId:
    model = _parse_part(role, ModelId, value)
    if not isinstance(model.id, str) or not isinstance(model.revision, str | None):
        raise ValueError(f"field '{role}' is damaged")
    return model


def _check_columns(score: str, rows: Any, default: str | None) -> None:
    listed = _check_object(f"columns.{score}", rows)
    if (default or next(iter(listed), None)) not in listed:
        raise ValueError(f"field 'columns.{score}' has no row '{default}'")
    widths = {len(_check_list(f"columns.{score}.{row}", cells)) for row, cells in listed.items()}
    if len(widths) != 1 or 0 in widths:
        raise ValueError(f"field 'columns.{score}' has rows of other lengths")
    for row, cells in listed.items():
        for at, cell in enumerate(cells):
            for key in ("tau", "kappa"):
                path = f"columns.{score}.{row}[{at}].{key}"
                _check_number(path, _check_object(path, cell).get(key))


def _check_object(path: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"field '{path}' is {type(values).__name__}, not an object")
    return values


def _parse_part(path: str, kind: type[Part], values: Any) -> Part:
    """`values` as this dataclass. Raises ValueError with the field that is missing or not known."""
    expected = {field.name: field.default is MISSING for field in fields(kind)}  # type: ignore[arg-type]
    for given in _check_object(path, values):
        if given not in expected:
            raise ValueError(f"field '{path}.{given}' is not known")
    for wanted, required in expected.items():
        if required and wanted not in values:
            raise ValueError(f"field '{path}.{wanted}' is missing")
    return kind(**values)


def _parse_score(name: str, values: Any) -> ScoreCalibration:
    path = f"scores.{name}"
    held = _parse_part(path, ScoreCalibration, values)
    if held.plugin is None and name not in registered.names():
        raise ValueError(f"field '{path}' is not a score; known: {', '.join(registered.names())}")
    if held.plugin is not None and set(_check_object(f"{path}.plugin", held.plugin)) != {"source", "digest"}:
        raise ValueError(f"field '{path}.plugin' is damaged")
    if not isinstance(held.signed, bool):
        raise ValueError(f"field '{path}.signed' is damaged")
    low = -1e300 if held.signed else 0.0
    sketch = _check_object(f"{path}.sketch", held.sketch)
    columns = []
    for column in ("rho", "tau", "tail_mean"):
        at = f"{path}.sketch.{column}"
        columns.append(np.array([_check_number(at, value, low) for value in _check_list(at, sketch.get(column))]))
    rho, tau, tail = columns
    sound = len(rho) == len(tau) == len(tail) >= MOST_OF_GRID and (np.diff(rho) > 0).all() and (np.diff(tau) <= 0).all()
    if not sound or not 0 < rho[0] <= LOWEST or not HIGHEST <= rho[-1] < 1 or (tail < tau - 1e-9 * abs(tau)).any():
        raise ValueError(f"field '{path}.sketch' is damaged")
    mean = _check_number(f"{path}.mean", held.mean, low)
    _check_number(f"{path}.rank_error", held.rank_error, 0.0, 1.0)
    if mean == 0 and tau.max() > 0 and not held.signed:
        raise ValueError(f"field '{path}.mean' is 0")
    table = _check_list(f"{path}.table", held.table)
    calibrated = replace(held, table=tuple(table))
    if [row.get("rho") if isinstance(row, dict) else None for row in table] != list(TABLE):
        raise ValueError(f"field '{path}.table' has other spike ratios than {', '.join(map(str, TABLE))}")
    for row in table:  # for people; what a run uses is the sketch, and an edited table would mislead
        for key, expected in asdict(calibrated.threshold(row["rho"])).items():
            value = _check_number(f"{path}.table[rho={row['rho']}].{key}", row.get(key), low)
            if not math.isclose(value, expected, rel_tol=1e-6):
                raise ValueError(f"field '{path}.table' has another {key} at rho={row['rho']} than its sketch")
        for share in (key for key in row if key.startswith("share_")):
            _check_number(f"{path}.table[rho={row['rho']}].{share}", row[share], 0.0, 1.0)
    return calibrated


def _parse_target(at: int, values: Any, held: Iterable[str]) -> Target:
    path = f"targets[{at}]"
    if "spike_ratio" in _check_object(path, values):  # before schema 4
        gate = {name: values.get(name) for name in ("score", "kappa_rule", "window")}
        policy = "entropy" if gate["score"] == "entropy" else "disagreement"
        rest = {name: value for name, value in values.items() if name not in (*gate, "spike_ratio")}
        rest |= {"budget_parameter": "spike_ratio", "value": values["spike_ratio"]}
        values = rest | {"method": {"policy": policy, **gate}}
    target = _parse_part(path, Target, values)
    for name in ("prompts", "tokens"):
        _check_whole_number(f"{path}.{name}", getattr(target, name), 1)
    for name in ("target_rate", "realized_rate"):
        _check_number(f"{path}.{name}", getattr(target, name), 0.0, 1.0)
    bounds = (LOWEST, HIGHEST) if target.budget_parameter == "spike_ratio" else (0.0, math.inf)
    _check_number(f"{path}.value", target.value, *bounds)
    method = _check_object(f"{path}.method", target.method)
    if "window" in method:
        _check_whole_number(f"{path}.method.window", method["window"], 1)
    if method.get("kappa_rule", KAPPA_RULES[0]) not in KAPPA_RULES:
        raise ValueError(f"field '{path}.method.kappa_rule' is not known: {method['kappa_rule']}")
    if "score" in method and method["score"] not in (*held, *registered.names()):
        raise ValueError(f"field '{path}.method.score' is not known: {method['score']}")
    if not isinstance(target.budget_parameter, str) or not isinstance(method.get("policy"), str):
        raise ValueError(f"field '{path}' is damaged")
    return target


def packaged_calibrations() -> dict[str, Path]:
    """The calibration files that ship with the package, by name."""
    return {path.stem: path for path in sorted(data_folder("calibration").glob("*.json"))}


def find_calibration(name: str) -> tuple[Calibration, int | None]:
    """A packaged name or a path, with the column of `NAME:COLUMN`."""
    known = packaged_calibrations()
    if name in known:
        return read_calibration(known[name]), None
    if Path(name).exists():
        return read_calibration(Path(name)), None
    stem, _, column = name.rpartition(":")
    if stem and column.isdecimal():
        return find_calibration(stem)[0], int(column)
    raise CalibrationError(
        f"calibration='{name}' is neither a file nor a packaged calibration ({', '.join(known)}); {nearest(name, known)}"
    )


def calibration_command(
    base: str | None,
    guide: str | None,
    direction: str,
    demo_prompts: Path,
    *,
    task: str | None = None,
    options: str = "",
    solving: str = "",
) -> str:
    """The command that makes a calibration for this pair; None stands for the bundled one, and its prompts are `demo_prompts`.

    `task` is what will be run, whose prompts those of the bundled pair have already; `options` stand before `--out`, and before
    them those that solve a rate, `solving` (`name_rate`).
    """
    pair, prompts = f" --base {base} --guide {guide}", "openai/gsm8k:main"
    if base is None or guide is None:
        pair, prompts, task = "", str(demo_prompts), None
    reverse = " --direction reverse" if direction == "reverse" else ""
    form = f" --task {task}" if task else ""
    again = " --overwrite" if Path("my-pair.json").exists() else ""
    return f"lm-eval-takeover calibrate{pair}{reverse}{form} --prompts {prompts}{solving}{options} --out my-pair.json{again}"


def find_target(calibration: Calibration, rate: float, method: Mapping[str, Any], command: Callable[[], str]) -> Target:
    """What was solved for this realized rate and method. Raises CalibrationError with the command that solves it."""
    found = next((target for target in calibration.targets if target.answers(rate, method)), None)
    if found is not None:
        return found
    asked = Target(rate, dict(method), "", 0, 0, 0, 0).name
    held = "; ".join(f"{target.name} at {target.target_rate:g}" for target in calibration.targets)
    raise CalibrationError(
        f"calibration '{calibration.name}' was not solved for target_rate={rate:g} with {asked} (it holds "
        f"{held or 'no target'}); make one with `{command()}` and give that file as calibration, or set the method's own argument"
    )


_USUAL = {"kappa_rule": KAPPA_RULES[0], "window": 10}


def name_rate(rate: float, method: Mapping[str, Any], plugins: str | None = None) -> str:
    """The options of `calibrate` that solve a method's budget parameter for this rate."""
    own = dict(method)
    policy, score = own.pop("policy"), own.pop("score", None)
    gate = {name: own.pop(name, usual) for name, usual in _USUAL.items()}
    options = [f" --{name} {value}" for name, value in gate.items() if value != _USUAL[name]]
    if plugins:
        options.append(f" --plugins {plugins}")
    if policy in ("disagreement", "entropy"):
        return "".join([*([f" --score {score}"] if score != "ce" else []), *options, f" --target_rate {rate:g}"])
    pairs = {**({} if score is None else {"score": score}), **own}
    word = ":".join([policy, *(f"{name}={value}" for name, value in pairs.items())])
    return "".join([f" --methods {word}@{rate:g}", *options])


def check_target_rate(
    name: str, rate: float, gate: Mapping[str, Any], base: str | None, guide: str | None, demo_prompts: Path
) -> None:
    """Raises CalibrationError where the calibration of this name was not solved for this rate of a forward gate."""
    calibration, _ = find_calibration(name)
    if calibration.source != "published":
        command = partial(calibration_command, base, guide, "forward", demo_prompts, solving=name_rate(rate, gate))
        find_target(calibration, rate, gate, command)


def matching_calibrations(files: Iterable[Path], base: ModelId, guide: ModelId, direction: str) -> list[Calibration]:
    """The calibrations among `files` that are for this pair and direction."""
    calibrations = map(read_calibration, files)
    return [c for c in calibrations if is_for_pair(c, base, guide) and c.direction == direction]


def is_for_pair(calibration: Calibration, base: ModelId, guide: ModelId) -> bool:
    """Whether a calibration's pair is this one."""
    return base.same_model(calibration.base) and guide.same_model(calibration.guide)
