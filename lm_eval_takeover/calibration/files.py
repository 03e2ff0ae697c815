"""Calibration files: equations (3) and (4) of the paper, measured once for a pair and read by every run.

    tau   = quantile(S, 1 - rho)                  S: all scores of base rollouts on held-out prompts
    kappa = tau / mean(S)                         rule threshold_to_mean, the one that the paper's Table 13 shows
    kappa = mean(s in S, s > tau) / mean(S)       rule tail_to_mean

A measured file holds for each score tau, both kappas and the share of takeovers at many rho, and the values that were solved for
target rates. A published one (`source: published`) holds the (tau, kappa) columns of a printed table, whose rho is not known.
Files are written whole or not at all, checked field by field when read, and found by name or pair.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from lm_eval_takeover.errors import CalibrationError, nearest
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.storage.files import CALIBRATIONS, read_bounded, write_text
from lm_eval_takeover.storage.schema import Between, Count, Positive, Share, check, show


@dataclass(frozen=True, slots=True)
class ModelId:
    id: str
    # The hub's commit, or `blake2b:…` of a local folder; behind it, with a `+`, those of adapters and of code elsewhere.
    revision: str | None

    def same_model(self, other: "ModelId") -> bool:
        """One model, as far as names tell: the same files, or the same hub id (whatever its commit) and the same adapter."""
        own, their = (model.revision or "" for model in (self, other))
        if ":" in own + their:
            return own == their
        return self.id == other.id and own.partition("+")[2] == their.partition("+")[2]

    def __str__(self) -> str:
        return self.id if self.revision is None else f"{self.id}@{self.revision[:15]}"


SCHEMA = 4
Nats = Annotated[float, Between(0)]
KAPPA_RULES = ("threshold_to_mean", "tail_to_mean")
USUAL_GATE = {"kappa_rule": KAPPA_RULES[0], "window": 10}
DEFAULT_RHO = 0.03
TABLE = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)
TOLERANCE = 0.005  # of a realized rate that was solved for: half a percentage point
LOWEST, HIGHEST = 0.001, 0.5  # the rho that a gate may ask for
# Fine where spikes are: steps of 0.0001 up to 0.01 and of 0.0005 above; any rho between two of them is interpolated. The
# values outside LOWEST..HIGHEST are there for the curve of the whole distribution.
_BELOW, _ABOVE = np.outer(10.0 ** np.arange(-6, -3), [1, 2, 5]).reshape(-1), np.arange(11, 20) / 20
_STEPS = (_BELOW, np.arange(10, 100) / 10_000, np.arange(20, 1001) / 2_000, _ABOVE)
GRID: tuple[float, ...] = tuple(np.round(np.concatenate(_STEPS), 7).tolist())


class Sketch(TypedDict):
    """Quantiles by spike ratio: `tau` in nats, and the mean of the scores above it."""

    rho: list[float]
    tau: list[float]
    tail_mean: list[float]


class Cell(TypedDict):
    """Of a published table."""

    tau: Nats
    kappa: Nats


class PluginSource(TypedDict):
    source: str
    digest: str


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """A score: `mean` in nats, a readable `table`, the `sketch` for any rho. If `signed`, it has no window test: kappa is 0."""

    mean: float
    table: tuple[dict[str, float], ...]
    sketch: Sketch
    rank_error: Share = 0.0  # of the quantiles; files of earlier versions may have one
    plugin: PluginSource | None = None
    signed: bool = False

    @classmethod
    def of(cls, scores: NDArray[np.float32], *, signed: bool = False) -> Self:
        """From all scores, of which there are some. The shares of takeovers are not known yet: `with_shares`."""
        values = np.sort(scores.astype(np.float64))
        grid = [rho for rho in GRID if rho >= LOWEST or rho * len(values) >= 1]
        tau = np.quantile(values, [1.0 - rho for rho in grid])
        above = len(values) - np.searchsorted(values, tau, side="right")  # scores; where there are none, the tail is tau
        tail = np.where(above > 0, np.append(tau[:1], np.cumsum(values[::-1]))[above] / np.maximum(above, 1), tau)
        sketch: Sketch = {"rho": grid, "tau": tau.tolist(), "tail_mean": tail.tolist()}
        calibrated = cls(float(values.mean()), (), sketch, signed=signed)
        return replace(calibrated, table=tuple(map(calibrated.threshold, TABLE)))

    def with_shares(self, shares: Mapping[tuple[float, str], float]) -> Self:
        """The table with the share of takeovers by (rho, kappa rule)."""
        rows = ({**row, **{f"share_{rule}": shares[row["rho"], rule] for rule in KAPPA_RULES}} for row in self.table)
        return replace(self, table=tuple(rows))

    def threshold(self, rho: float) -> dict[str, float]:
        """The table's row at this `rho`, in [0.001, 0.5]: `tau` in nats and `kappa_RULE` by each rule."""
        if not LOWEST <= rho <= HIGHEST:
            raise CalibrationError(f"spike_ratio={rho} is outside {LOWEST}..{HIGHEST}, which calibrations hold")
        tau = float(np.interp(rho, self.sketch["rho"], self.sketch["tau"]))
        tail = float(np.interp(rho, self.sketch["rho"], self.sketch["tail_mean"]))
        has_kappa = self.mean != 0 and not self.signed  # if the mean is 0, any positive score is a spike
        kappas = (tau / self.mean, tail / self.mean) if has_kappa else (0.0, 0.0)
        return {"rho": rho, "tau": tau, "kappa_threshold_to_mean": kappas[0], "kappa_tail_to_mean": kappas[1]}


@dataclass(frozen=True, slots=True)
class Target:
    """The value of a method's budget parameter whose realized rate came nearest to the wanted one; `method`: other arguments.

    It is solved on half of the held-out prompts, where it realizes `solved_rate`. The other half is `prompts`: there it realizes
    `realized_rate`, with its 95 % interval. Files of earlier versions have one number for both, and no interval.
    """

    target_rate: Share
    method: dict[str, Any]
    budget_parameter: str
    value: Nats
    realized_rate: Share
    prompts: Positive
    tokens: Positive
    low: Share | None = None
    high: Share | None = None
    solved_rate: Share | None = None

    def answers(self, rate: float, method: Mapping[str, Any]) -> bool:
        return self.method == method and math.isclose(self.target_rate, rate)

    @property
    def is_reached(self) -> bool:
        return abs(self.nearest_rate - self.target_rate) <= TOLERANCE

    @property
    def nearest_rate(self) -> float:
        """What it realizes on the prompts that it was solved on."""
        return self.realized_rate if self.solved_rate is None else self.solved_rate

    def describe_rate(self) -> str:
        known = "" if self.low is None or self.high is None else f" ({self.low:.1%} to {self.high:.1%})"
        return f"{self.realized_rate:.2%}{known}"

    @property
    def name(self) -> str:
        return name_method(self.method)


def list_arguments(method: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments of a method that are not at their defaults."""
    usual = {**USUAL_GATE, "policy": "disagreement", "score": "entropy" if method["policy"] == "entropy" else "ce"}
    return {name: value for name, value in method.items() if usual.get(name) != value}


def name_method(method: Mapping[str, Any]) -> str:
    """The method as `calibrate --methods` and rows of `compare` name it: its score or its policy, with what is not usual."""
    own = list_arguments(method)
    name = method["score"] if method["policy"] == "disagreement" else method["policy"]
    pairs = (f"{key}={value}" for key, value in own.items() if key != "policy" and value != name)
    return ":".join([name, *pairs])


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration file. `scores` is filled in a measured one, `columns` in a published one."""

    base: ModelId
    guide: ModelId
    vocabulary: dict[str, Any] | None
    direction: Literal["forward", "reverse"]
    source: Literal["measured", "published"] = "measured"
    prompts: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    rollouts: int | None = None
    tokens: int | None = None
    cut: int | None = None  # rollouts that ran into their limit of tokens
    dtypes: dict[str, str] = field(default_factory=dict)  # of the weights by role
    quantization: dict[str, dict[str, Any]] = field(default_factory=dict)  # as they are loaded by role, such as load_in_4bit
    diagnostic: tuple[str, ...] = ()  # the benchmarks that it was measured on; runs on them refuse it
    library_versions: dict[str, str] = field(default_factory=dict)
    window: Positive = 10
    scores: dict[str, ScoreCalibration] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    columns: dict[str, dict[str, list[Cell]]] = field(default_factory=dict)
    default_row: str | None = None
    notes: str = ""
    schema: int = SCHEMA
    name: str = ""

    @property
    def problems(self) -> list[str]:
        """Digests of the problems that it was measured on (`tasks.known_problems`); none where they are not known."""
        return list(self.prompts.get("problems", []))

    def score(self, score: str) -> ScoreCalibration:
        if score not in self.scores:
            names = ", ".join(self.scores or self.columns)
            raise CalibrationError(f"calibration '{self.name}' does not hold score={score}; give one of {names}")
        return self.scores[score]

    def published(self, score: str, column: int) -> dict[str, float]:
        """Column `column` (from 1, strictest first) of the default row of a published table, whose kappa is threshold_to_mean."""
        row = self._default_cells(score)
        if not 1 <= column <= len(row):
            raise CalibrationError(f"'{self.name}:{column}' has columns {self.list_columns(score)}, strictest first")
        return {"tau": row[column - 1]["tau"], "kappa_threshold_to_mean": row[column - 1]["kappa"]}

    def list_columns(self, score: str) -> str:
        """The columns of a published table as they are asked for, with their numbers."""
        cells = enumerate(self._default_cells(score), 1)
        return ", ".join(f"{self.name}:{number} (tau={c['tau']:g}, kappa={c['kappa']:g})" for number, c in cells)

    def _default_cells(self, score: str) -> list[Cell]:
        if score not in self.columns:
            self.score(score)  # raises
        rows = self.columns[score]
        return rows[self.default_row or next(iter(rows))]


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


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Write a calibration file; an old one stays until the new one is whole."""
    content = {"schema": SCHEMA, **{k: v for k, v in asdict(calibration).items() if k not in ("schema", "name")}}
    if not content["quantization"]:
        del content["quantization"]
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
    if content["schema"] != SCHEMA:
        raise ValueError(f"field 'schema' is {show(content['schema'])}, and this version reads {SCHEMA}")
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
    return calibration


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


def find_target(
    calibration: Calibration, rate: float, method: Mapping[str, Any], argument: str, command: Callable[..., str]
) -> Target:
    """The target; `argument` is the method's budget parameter. Raises CalibrationError with a command that solves it."""
    target = next((target for target in calibration.targets if target.answers(rate, method)), None)
    if target is not None:
        return target
    chat = {"apply_chat_template": bool(calibration.prompts.get("chat_template"))}
    names = "; ".join(f"{target.name} at {target.target_rate:g}" for target in calibration.targets)
    raise CalibrationError(
        f"calibration '{calibration.name}' was not solved for target_rate={rate:g} with {name_method(method)} "
        f"(it holds {names or 'no target'}); solve it with `{command(options=chat, known=calibration, extends=True)}` "
        f"and give that file as calibration, or give {argument}=…"
    )


def find_packaged(base: ModelId, guide: ModelId, direction: str) -> Calibration | None:
    packaged = map(read_calibration, packaged_calibrations().values())
    return next((each for each in packaged if is_for_pair(each, base, guide) and each.direction == direction), None)


def is_for_pair(calibration: Calibration, base: ModelId, guide: ModelId) -> bool:
    return base.same_model(calibration.base) and guide.same_model(calibration.guide)
