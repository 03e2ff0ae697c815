"""Effects of positions without the noise of their K continuations: an empirical Bayes estimate.

A pair of continuations (the same random numbers behind either token) ends in one of three ways. Only the donor's text is correct,
with probability `a`; only the host's, with `b`; or both texts are alike. The effect of a position is `a - b`. The distribution of
(a, b) over positions is estimated from all of them: nonparametric maximum likelihood on a grid (Kiefer and Wolfowitz, 1956;
Koenker and Mizera, J. Am. Stat. Assoc. 109, 2014), by EM from the even distribution. `benchmarks/effect_intervals.py` tests it.
"""

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

LARGE = 0.25  # an effect above it is helpful, one below its negative harmful
_STEPS, _ROUNDS = 20, 200  # of the grid and of EM: more rounds fit the noise
_GRID = np.array([(a, b) for a in range(_STEPS + 1) for b in range(_STEPS + 1 - a)]) / _STEPS
EFFECTS = _GRID[:, 0] - _GRID[:, 1]
BEYOND = np.stack([EFFECTS > LARGE + 1e-9, EFFECTS < -LARGE - 1e-9], axis=1).astype(np.float64)  # helpful, harmful


class Outcomes:
    """How the pairs of continuations of positions ended, and how likely that is at each point of the grid."""

    def __init__(self, gained: NDArray[np.int64], lost: NDArray[np.int64], pairs: int, *, exact: bool = False) -> None:
        """`gained` and `lost` [positions] of so many pairs; `exact`: decoding is greedy, so there is no noise."""
        cells, self._cell = np.unique(np.stack([gained, lost], axis=1), axis=0, return_inverse=True)
        shares = np.column_stack([cells, pairs - cells.sum(axis=1)])
        chances = np.column_stack([_GRID, 1 - _GRID.sum(axis=1)])
        if exact:
            nearest = np.abs(shares[:, np.newaxis] / pairs - chances).sum(axis=2).argmin(axis=1)
            self._likelihood = np.eye(len(_GRID))[nearest]
        else:
            logs = shares @ np.log(np.maximum(chances, 1e-9)).T
            self._likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))

    def fit(self, weights: Values) -> Values:
        """The distribution on the grid, `[..., grid]`, of positions that count with these weights `[..., positions]`."""
        counts = np.asarray(weights @ np.eye(len(self._likelihood))[self._cell])
        counts = counts / counts.sum(axis=-1, keepdims=True)
        mixture = np.full((*counts.shape[:-1], len(_GRID)), 1 / len(_GRID))
        for _ in range(_ROUNDS):
            mixture = mixture * ((counts / (mixture @ self._likelihood.T)) @ self._likelihood)
        return np.asarray(mixture)

    def infer(self, mixture: Values) -> Values:
        """How probable each point of the grid is for each position `[positions, grid]`."""
        joint = self._likelihood * mixture
        return np.asarray((joint / joint.sum(axis=1, keepdims=True))[self._cell])
