"""Calibration files: equations (3) and (4) of the paper, measured once for a pair and read by every run.

    tau   = quantile(S, 1 - rho)                  S: all scores of base rollouts on held-out prompts
    kappa = tau / mean(S)                         rule threshold_to_mean, the one that the paper's Table 13 shows
    kappa = mean(s in S, s > tau) / mean(S)       rule tail_to_mean

A measured file holds, for each score, tau and both kappas at many rho. A published one (`source: published`) holds the
(tau, kappa) columns of a printed table, whose rho is not known.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError, nearest
from lm_eval_takeover.model_id import ModelId
from lm_eval_takeover.resources import data_folder

SCHEMA = 1
KAPPA_RULES = ("threshold_to_mean", "tail_to_mean")
DEFAULT_RHO = 0.03
TABLE = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.1, 0.2)
# Fine where spikes are: steps of 0.0001 up to 0.01 and of 0.0005 above. Any rho between two of them is interpolated.
GRID = tuple(
    float(rho) for rho in np.round(np.concatenate([np.arange(10, 100) / 10_000, np.arange(20, 1001) / 2_000]), 6)
)


@dataclass(frozen=True, slots=True)
class Threshold:
    """`tau` in nats and one `kappa` per rule. What is published was made with threshold_to_mean, and stands for both."""

    tau: float
    kappa_threshold_to_mean: float
    kappa_tail_to_mean: float


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """One score's distribution: `mean` in nats, a readable `table`, and the `sketch` that any rho is read from."""

    mean: float
    table: tuple[dict[str, float], ...]
    sketch: dict[str, list[float]]

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """From all scores: exact quantiles on `GRID`, linear between order statistics as numpy does by default."""
        scores: NDArray[np.float64] = np.sort(np.asarray(values, dtype=np.float64))
        if len(scores) == 0:
            raise CalibrationError("no score was collected; the prompts gave no rollout")
        if not np.isfinite(scores).all():
            count = int((~np.isfinite(scores)).sum())
            raise CalibrationError(f"{count} of {len(scores)} scores are NaN or infinite; load the models in float32")
        tau = np.quantile(scores, 1.0 - np.asarray(GRID))
        # Sums from the top down give the mean of any tail.
        above = len(scores) - np.searchsorted(scores, tau, side="right")
        sums = np.concatenate([[0.0], np.cumsum(scores[::-1])])
        tail = np.where(above > 0, sums[above] / np.maximum(above, 1), tau)
        mean = float(scores.mean())
        sketch = {"rho": list(GRID), "tau": tau.tolist(), "tail_mean": tail.tolist()}
        made = cls(mean, (), sketch)
        rows = [{"rho": rho, **asdict(made.threshold(rho))} for rho in TABLE]
        return cls(mean, tuple(rows), sketch)

    def threshold(self, rho: float) -> Threshold:
        """tau and both kappas at this rho, in [0.001, 0.5]."""
        lowest, highest = self.sketch["rho"][0], self.sketch["rho"][-1]
        if not lowest <= rho <= highest:
            raise CalibrationError(f"spike_ratio={rho} is outside {lowest}..{highest}, which the calibration holds")
        tau = float(np.interp(rho, self.sketch["rho"], self.sketch["tau"]))
        tail = float(np.interp(rho, self.sketch["rho"], self.sketch["tail_mean"]))
        if self.mean == 0:
            return Threshold(tau, 0.0, 0.0)  # all scores zero: no window test, and whatever is not zero is a spike
        return Threshold(tau, tau / self.mean, tail / self.mean)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A calibration file. `scores` is filled in a measured one, `columns` in a published one."""

    base: ModelId
    guide: ModelId
    vocabulary: dict[str, Any] | None
    direction: str = "forward"
    source: str = "measured"
    prompts: dict[str, Any] = field(default_factory=dict)
    decoding: dict[str, Any] = field(default_factory=dict)
    rollouts: int | None = None
    tokens: int | None = None
    library_versions: dict[str, str] = field(default_factory=dict)
    scores: dict[str, ScoreCalibration] = field(default_factory=dict)
    columns: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)
    default_row: str | None = None
    notes: str = ""
    schema: int = SCHEMA
    name: str = ""

    def score(self, score: str) -> ScoreCalibration:
        if score not in self.scores:
            held = ", ".join(self.scores or self.columns)
            raise CalibrationError(
                f"calibration '{self.name}' does not hold score={score} (it holds {held}); choose one of those or "
                f"make a new file with `lm-eval-takeover calibrate`"
            )
        return self.scores[score]

    def published(self, score: str, column: int) -> Threshold:
        """Column `column` (from 1, strictest first) of the default row of a published table."""
        if score not in self.columns:
            self.score(score)
        rows = self.columns[score]
        row = rows[self.default_row or next(iter(rows))]
        if not 1 <= column <= len(row):
            raise CalibrationError(f"calibration '{self.name}:{column}' has columns 1..{len(row)}, strictest first")
        return Threshold(row[column - 1]["tau"], row[column - 1]["kappa"], row[column - 1]["kappa"])

    def write(self, path: Path) -> None:
        """Write the file whole or not at all."""
        content = {"schema": self.schema, **{k: v for k, v in asdict(self).items() if k not in ("schema", "name")}}
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as stream:
                stream.write(_dumps(content))
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise


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
    try:
        scores = {
            name: ScoreCalibration(values["mean"], tuple(values["table"]), values["sketch"])
            for name, values in content.pop("scores", {}).items()
        }
        for name, held in scores.items():
            _check_score(name, held)
        base, guide = ModelId(**content.pop("base")), ModelId(**content.pop("guide"))
        made = Calibration(base, guide, **content, scores=scores, name=path.stem)
        _check_pair(made)
        return made
    except (TypeError, KeyError, ValueError, AttributeError) as error:  # whatever a hand-edited file can hold
        raise CalibrationError(f"calibration file '{path}' is damaged: {error}; make it anew") from error


def _check_score(name: str, held: ScoreCalibration) -> None:
    columns = [np.asarray(held.sketch[column], dtype=np.float64) for column in ("rho", "tau", "tail_mean")]
    rho, tau, tail = columns
    sound = len(rho) == len(tau) == len(tail) > 0 and all(np.isfinite(column).all() for column in columns)
    if not sound or (np.diff(rho) <= 0).any() or not 0 < rho[0] <= rho[-1] < 1 or min(tau.min(), tail.min()) < 0:
        raise ValueError(f"field 'scores.{name}.sketch' is damaged")
    if not np.isfinite(held.mean) or held.mean < 0 or (held.mean == 0 and tau.max() > 0):
        raise ValueError(f"field 'scores.{name}.mean' is {held.mean}")


def _check_pair(made: Calibration) -> None:
    for role, model in (("base", made.base), ("guide", made.guide)):
        if not isinstance(model.id, str) or not isinstance(model.revision, (str, type(None))):
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


def _dumps(content: dict[str, Any]) -> str:
    """Indented JSON with each list of numbers on one line."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    return re.sub(r"\[([-+.\deE,\s]+)\]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def matching(files: Iterable[Path], base: ModelId, guide: ModelId, direction: str) -> list[Calibration]:
    """The calibrations among `files` that were made for this pair and direction."""
    found = [read(path) for path in files]
    return [c for c in found if made_for(c, base, guide) and c.direction == direction]


def made_for(calibration: Calibration, base: ModelId, guide: ModelId) -> bool:
    """Whether a calibration's pair is this one."""
    return base.same_model(calibration.base) and guide.same_model(calibration.guide)
