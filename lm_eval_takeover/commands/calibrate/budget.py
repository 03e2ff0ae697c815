"""From a wanted realized rate to the spike ratio that gives it.

rho is the share of *calibration* tokens above tau. The realized rate of a guided run differs: the window test holds takeovers
back, and every takeover changes what the host writes next. So it is measured, on gated rollouts of held-out prompts, and rho is
searched for. The rollouts share their random numbers, so the rate is nearly monotone in rho.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from tqdm import tqdm

from lm_eval_takeover.calibration.thresholds import HIGHEST, LOWEST, ScoreCalibration, Target
from lm_eval_takeover.decoding.engine import generate
from lm_eval_takeover.method.gate import Gate
from lm_eval_takeover.method.policies import Disagreement, Entropy
from lm_eval_takeover.method.request import Request
from lm_eval_takeover.pair.pair import Pair

if TYPE_CHECKING:
    from lm_eval_takeover.vllm.backend import VllmBackend

_CLOSE = 0.001  # near enough to stop: fresh prompts add their own noise
_MOST = 12  # measurements of one target


class ResultStore(Protocol):
    """Where measured rates survive a kill."""

    def remember(self, name: str, value: list[int]) -> None: ...

    def remembered(self) -> dict[str, list[int]]: ...


@dataclass(frozen=True, slots=True)
class HeldOutRollouts:
    """Gated rollouts of held-out prompts at any rho."""

    pair: Pair
    requests: Sequence[Request]
    calibration: ScoreCalibration
    score: str
    direction: str
    kappa_rule: str
    window: int
    seed: int
    batch_size: int
    prompts: str  # a digest of the held-out prompts
    backend: "VllmBackend | None" = None  # where it is not the transformers engine that writes

    def count_takeovers(self, rho: float, progress: bool = True) -> tuple[int, int]:
        """`(takeovers, tokens)` at this rho."""
        threshold = self.calibration.threshold(rho)
        gate = Gate(threshold.tau, threshold.kappa(self.kappa_rule), self.window)
        kind = Entropy if self.score == Entropy.score else Disagreement
        policy = kind(direction=self.direction, score=self.score, gate=gate)
        takeovers = tokens = 0
        if self.backend is not None:
            written = self.backend.generate(self.requests, seed=self.seed, policy=policy)
        else:
            written = generate(self.pair, policy, self.requests, seed=self.seed, batch_size=self.batch_size)
        with tqdm(total=len(self.requests), desc=f"Spike ratio {rho:.4g}", unit="rollout", disable=not progress) as bar:
            for _, generation in written:
                takeovers += generation.takeovers
                tokens += len(generation.tokens)
                bar.set_postfix_str(f"realized rate {takeovers / tokens:.2%}", refresh=False)
                bar.update()
        return takeovers, tokens


def solve(gated: HeldOutRollouts, rate: float, memory: ResultStore, *, progress: bool = True) -> Target:
    """The rho whose rollouts come nearest to `rate`: secants and halvings of log rho.

    It starts where the replay of the calibration's own rollouts gives the rate. The result may be off where no rho gives it, as
    in a mass of equal scores; the caller compares `realized_rate` with what was asked.
    """
    measured: dict[float, float] = {}
    tokens: dict[float, int] = {}

    def error(rho: float) -> float:
        if rho not in measured:
            name = f"{gated.prompts} {gated.score} {gated.kappa_rule} {gated.window} {rho!r}"
            if (known := memory.remembered().get(name)) is None:
                known = list(gated.count_takeovers(rho, progress))
                memory.remember(name, known)
            measured[rho], tokens[rho] = known[0] / known[1], known[1]
        return measured[rho] - rate

    rho = _start_from_replay(gated.calibration, gated.kappa_rule, rate)
    for step in range(_MOST):
        off = error(rho)
        low = max((tried for tried in measured if error(tried) < 0), default=None)
        above = (tried for tried in measured if error(tried) >= 0 and (low is None or tried > low))
        high = min(above, default=None)
        if abs(off) <= _CLOSE or (low and high and high / low < 1.002) or rho == (HIGHEST if off < 0 else LOWEST):
            break
        if low and high:
            share = error(low) / (error(low) - error(high)) if step % 3 else 0.5
            rho = low * (high / low) ** min(max(share, 0.1), 0.9)
        else:  # one side only: in proportion to what is missing, and at least by a tenth
            factor = (rate / max(rate + off, rate / 8)) ** 1.5
            rho = min(max(rho * (max(factor, 1.1) if off < 0 else min(factor, 1 / 1.1)), LOWEST), HIGHEST)
    best = min(measured, key=lambda tried: (abs(error(tried)), tried))
    return Target(
        target_rate=rate,
        score=gated.score,
        kappa_rule=gated.kappa_rule,
        window=gated.window,
        spike_ratio=best,
        realized_rate=measured[best],
        prompts=len(gated.requests),
        tokens=tokens[best],
    )


def _start_from_replay(calibration: ScoreCalibration, kappa_rule: str, rate: float) -> float:
    """The rho at which the replayed share is `rate`, interpolated in the table."""
    rows = [(row[f"share_{kappa_rule}"], row["rho"]) for row in calibration.table if row[f"share_{kappa_rule}"] > 0]
    for (share, rho), (next_share, next_rho) in pairwise(rows):
        if share <= rate <= next_share and share < next_share:
            return float(rho * (next_rho / rho) ** (math.log(rate / share) / math.log(next_share / share)))
    return min(max(rate, LOWEST), HIGHEST)
