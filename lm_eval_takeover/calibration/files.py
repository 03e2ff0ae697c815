"""Calibration files on disk: written whole or not at all, checked field by field when read, found by name or pair."""

import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from lm_eval_takeover.calibration import thresholds
from lm_eval_takeover.calibration.thresholds import Calibration, Nats, ScoreCalibration, Target
from lm_eval_takeover.errors import CalibrationError, nearest
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.method.model_id import ModelId
from lm_eval_takeover.storage.files import read_bounded, write_text
from lm_eval_takeover.storage.paths import CALIBRATIONS
from lm_eval_takeover.storage.schema import Count, Positive, Share, check, show

# Fields of a file that `Calibration` leaves untyped.


class _PromptsFields(TypedDict):
    chat_template: bool
    enable_thinking: bool | None
    template_digest: tuple[str, str]
    problems: list[str]


class _Decoding(TypedDict):
    temperature: Nats
    top_p: Share
    top_k: Count
    min_p: NotRequired[Share]


class _MeasuredFields(TypedDict):
    vocabulary: dict[str, Any]
    prompts: _PromptsFields
    decoding: _Decoding
    tokens: Positive


class _MethodFields(TypedDict):
    policy: str
    score: NotRequired[str]
    kappa_rule: NotRequired[Literal["threshold_to_mean", "tail_to_mean"]]
    window: NotRequired[Positive]


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file; an old one stays until the new one is whole."""
    content = {"schema": thresholds.SCHEMA, **{k: v for k, v in asdict(calibration).items() if k not in ("schema", "name")}}
    for score in content["scores"].values():
        for name in ("plugin", "signed"):
            if not score[name]:
                del score[name]
    content = json.loads(json.dumps(content | {"checksum": ""}, allow_nan=False))
    text = json.dumps(content | {"checksum": compute_checksum(content)}, indent=2, ensure_ascii=False)
    # Each list of numbers or digests on one line; inside a string there is no line break.
    text = re.sub(r'\[\n\s*([-+.\deE,\s"a-f]+)\n\s*\]', lambda match: "[" + re.sub(r"\n *", " ", match[1]) + "]", text)
    write_text(path, text + "\n")


def compute_checksum(content: dict[str, Any]) -> str:
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
        return _parse_calibration(content, path.stem)
    except Exception as error:  # whatever a hand-edited file can hold
        text = for_terminal(str(error), lines=False)
        raise CalibrationError(f"calibration file '{path}' is damaged: {text}; make a new one") from error


def _parse_calibration(content: dict[str, Any], name: str) -> Calibration:
    """The content of a file, every field checked. Raises ValueError with the field."""
    if content["schema"] != thresholds.SCHEMA:
        raise ValueError(f"field 'schema' is {show(content['schema'])}, and this version reads {thresholds.SCHEMA}")
    if content.get("checksum") != compute_checksum(content):
        raise ValueError("field 'checksum' does not fit: the file was edited after it was written")
    parts = {field: value for field, value in content.items() if field != "checksum"}
    calibration: Calibration = check({**parts, "name": name}, Calibration)
    if calibration.source == "measured":
        check(parts, _MeasuredFields)
        if not calibration.scores:
            raise ValueError("field 'scores' is empty")
    for score, rows in calibration.columns.items():
        if (calibration.default_row or next(iter(rows), None)) not in rows:
            raise ValueError(f"field 'columns.{score}' has no row '{calibration.default_row}'")
    for at, target in enumerate(calibration.targets):
        check(target.method, _MethodFields, f"targets[{at}].method")
    for score, measured in calibration.scores.items():
        _check_table(f"scores.{score}.table", measured)
    return calibration


def _check_table(path: str, score: ScoreCalibration) -> None:
    """Raises ValueError where the table, which is for people, and the sketch, which a run uses, do not agree."""
    if [row.get("rho") for row in score.table] != list(thresholds.TABLE):
        raise ValueError(f"field '{path}' has other spike ratios than {', '.join(map(str, thresholds.TABLE))}")
    for row in score.table:
        for key, expected in asdict(score.threshold(row["rho"])).items():
            if not math.isclose(row.get(key, math.nan), expected, rel_tol=1e-6):
                raise ValueError(f"field '{path}' has another {key} at rho={row['rho']} than its sketch")
        for share in (key for key in row if key.startswith("share_")):
            check(row[share], Share, f"{path}[rho={row['rho']}].{share}")


Model = str | None  # as an argument names it


def packaged_calibrations() -> dict[str, Path]:
    """The calibration files that ship with the package, by name."""
    return {path.stem: path for path in sorted(CALIBRATIONS.glob("*.json"))}


def find_calibration(name: str) -> tuple[Calibration, int | None]:
    """A packaged name or a path, with the column of `NAME:COLUMN`."""
    packaged = packaged_calibrations()
    if name in packaged:
        return read_calibration(packaged[name]), None
    if Path(name).exists():
        return read_calibration(Path(name)), None
    stem, _, column = name.rpartition(":")
    if stem and column.isdecimal():
        return find_calibration(stem)[0], int(column)
    raise CalibrationError(f"calibration='{name}' is neither a file nor a packaged one; {nearest(name, packaged)}")


def calibration_command(
    base: Model, guide: Model, direction: str, demo_prompts: Path, *, task: str | None = None, options: str = "",
    solving: str = "",
) -> str:  # fmt: skip
    """The command that makes a calibration for this pair; None stands for the bundled one, with the prompts `demo_prompts`.

    `task` is what will be run (default: that of `note_tasks`; the prompts of the bundled pair have its form already). `options`
    and `solving`, those that solve a rate (`name_rate`), stand before `--out`. The file is a new one.
    """
    noted, include = _asked.get()
    task = task or noted
    pair, prompts = f" --base {base} --guide {guide}", "openai/gsm8k:main"
    if base is None or guide is None:
        pair, prompts, task = "", str(demo_prompts), None
    reverse = " --direction reverse" if direction == "reverse" else ""
    form = f" --task {shlex.quote(task)}" if task else ""
    if task and include:
        form += f" --include_path {shlex.quote(include)}"
    names = chain(["my-pair.json"], (f"my-pair-{number}.json" for number in count(2)))
    out = next(name for name in names if not Path(name).exists())
    return f"lm-eval-takeover calibrate{pair}{reverse}{form} --prompts {prompts}{solving}{options} --out {out}"


_asked: ContextVar[tuple[str | None, str | None]] = ContextVar("first task and --include_path", default=(None, None))


def note_tasks(tasks: Sequence[str], include_path: str | Path | None) -> None:
    """Remember what the command at hand was asked, so that the commands in its errors fit its tasks."""
    _asked.set((next(iter(tasks), None), None if include_path is None else str(include_path)))


def find_target(calibration: Calibration, rate: float, method: Mapping[str, Any], command: Callable[[], str]) -> Target:
    """The target of this realized rate and method. Raises CalibrationError with the command that solves it."""
    target = next((target for target in calibration.targets if target.answers(rate, method)), None)
    if target is not None:
        return target
    names = "; ".join(f"{target.name} at {target.target_rate:g}" for target in calibration.targets)
    raise CalibrationError(
        f"calibration '{calibration.name}' was not solved for target_rate={rate:g} with {thresholds.name_method(method)} "
        f"(it holds {names or 'no target'}); make one with `{command()}` and give that file as calibration, or set the "
        f"method's own argument"
    )


def name_rate(rate: float, method: Mapping[str, Any], plugins: str | None = None) -> str:
    """The options of `calibrate` that solve a method's budget parameter for this rate."""
    return f" --methods {thresholds.name_method(method)}@{rate:g}" + (f" --plugins {plugins}" if plugins else "")


def matching_calibrations(files: Iterable[Path], base: ModelId, guide: ModelId, direction: str) -> list[Calibration]:
    """The calibrations among `files` that are for this pair and direction."""
    calibrations = map(read_calibration, files)
    return [c for c in calibrations if is_for_pair(c, base, guide) and c.direction == direction]


def is_for_pair(calibration: Calibration, base: ModelId, guide: ModelId) -> bool:
    return base.same_model(calibration.base) and guide.same_model(calibration.guide)
