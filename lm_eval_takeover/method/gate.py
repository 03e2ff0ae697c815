"""The gate: equation (5) of the paper, which scores are spikes.

    m_t  = mean(s_i for i in max(0, t - w) .. t - 1)
    fire = s_t > tau  and  (t == 0 or s_t > kappa * m_t)

Pure functions on tensors. The window is the last `w` scores of each row; every emitted position enters it, takeovers included.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lm_eval_takeover.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Gate:
    """The calibrated test. `tau` in nats; `kappa` has no unit, 0 turns the window test off; `window` in tokens."""

    tau: float
    kappa: float = 0.0
    window: int = 10

    def __post_init__(self) -> None:
        if math.isnan(self.tau):
            raise ArgumentError(f"tau={self.tau} is not a number")
        if math.isnan(self.kappa) or self.kappa < 0:
            raise ArgumentError(f"kappa={self.kappa} is not a number of at least 0")
        if not 1 <= self.window <= 2**16:  # each text keeps so many scores
            raise ArgumentError(f"window={self.window} is not in 1 to 65536 tokens; kappa=0 turns the window test off")


def fires(gate: Gate, score: Tensor, recent: Tensor, position: Tensor | int) -> Tensor:
    """Equation (5).

    score: `[...]` the score at this position. recent: `[..., window]` the scores just before it, oldest first, zeros
    where there are none yet. position: `[...]` or one number, tokens emitted so far (`t`). Returns bool `[...]`.
    """
    emitted = torch.as_tensor(position, device=score.device)
    # float64, so that the mean of float32 scores is exact and equal scores never exceed their own mean.
    mean = recent.double().sum(-1) / emitted.clamp(1, gate.window)
    score = score.double()
    spike = score > gate.tau
    return spike if gate.kappa == 0 else spike & ((emitted == 0) | (score > gate.kappa * mean))


def push(recent: Tensor, score: Tensor) -> Tensor:
    """The window `[..., window]` after one more emitted position with this score `[...]`."""
    return torch.cat([recent[..., 1:], score[..., None]], dim=-1)


def fires_ahead(gate: Gate, scores: Tensor, recent: Tensor, position: Tensor) -> Tensor:
    """Equation (5) at the next positions of each row, as if none of them fired: what a block is judged by.

    scores `[..., k]`, recent `[..., window]` the scores before them, position `[...]` the first one. Returns bool `[..., k]`.
    """
    k = scores.shape[-1]
    if not k:
        return torch.zeros_like(scores, dtype=torch.bool)
    before = torch.cat([recent, scores], -1)[..., : gate.window + k - 1].unfold(-1, gate.window, 1)
    return fires(gate, scores, before, position[..., None] + torch.arange(k, device=scores.device))


def fires_along(gate: Gate, scores: Tensor) -> Tensor:
    """Equation (5) at every position of whole trajectories at once: scores `[..., tokens]` to bool `[..., tokens]`."""
    shape = scores.shape[:-1]
    position = torch.zeros(shape, dtype=torch.long, device=scores.device)
    return fires_ahead(gate, scores, scores.new_zeros(*shape, gate.window), position)
