"""Problems as hard, and as unlike each other, as those of the paper's Table 3: what the simulations of statistics draw from.

Acc and Pass@8 of a cell determine a beta distribution of the probability that a sample is correct: Acc is its mean, and Pass@8
`1 - E (1 - p)^8`. Cells with 0 or 100 in either determine none.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from lm_eval_takeover.commands.leaderboard.published import read_published_rows

Array = NDArray[np.float64]
CORRELATION = 0.8  # between the normal scores of one problem's difficulty for two models


class Beta(NamedTuple):
    """A beta distribution by its two shapes."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def pass8(self) -> float:
        return float(1 - np.exp(special.betaln(self.a, self.b + 8) - special.betaln(self.a, self.b)))


def fit(acc: float, pass8: float) -> Beta | None:
    """The distribution of a cell; None where no beta distribution has these two."""

    def excess(log_weight: float) -> float:
        weight = np.exp(log_weight)
        return Beta(acc * weight, (1 - acc) * weight).pass8 - pass8

    if not (0 < acc < 1 and 0 < pass8 < 1) or excess(-8) * excess(8) > 0:
        return None
    weight = float(np.exp(optimize.brentq(excess, -8, 8)))
    return Beta(acc * weight, (1 - acc) * weight)


def table3() -> dict[tuple[int, str], Beta]:
    """The distributions of Table 3, by number of the row and task."""
    rows = [row for row in read_published_rows() if row.source == "published, Table 3"]
    cells = {(number, task): cell for number, row in enumerate(rows) for task, cell in row.tasks.items()}
    pairs = {place: (cell.acc.value, cell.passed.value) for place, cell in cells.items()}
    betas = {place: fit(acc, pass8) for place, (acc, pass8) in pairs.items() if acc is not None and pass8 is not None}
    return {place: beta for place, beta in betas.items() if beta is not None}


def draw_together(generator: np.random.Generator, betas: list[Beta], shape: tuple[int, int]) -> list[Array]:
    """Probabilities [draws, problems] for several models; hard problems are hard for all (a Gaussian copula)."""
    common = generator.standard_normal(shape)
    found = []
    for beta in betas:
        own = CORRELATION**0.5 * common + (1 - CORRELATION) ** 0.5 * generator.standard_normal(shape)
        found.append(_quantiles(beta)(stats.norm.cdf(own)))
    return found


def joint_outcomes(betas: Sequence[Beta], samples: int) -> Array:
    """How probable each outcome of a problem is: `[samples + 1] * models`, by how many samples are correct in each run.

    Two equal distributions are one model with two seeds; others are tied as in `draw_together`.
    """
    return _joint_outcomes(tuple(betas), samples)


@cache
def _joint_outcomes(betas: tuple[Beta, ...], samples: int) -> Array:
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    if len(betas) == 2 and betas[0] == betas[1]:
        ends = np.linspace(0, 1, 201)  # quantiles of one difficulty, which both runs have
        chances = stats.beta.ppf((ends[1:] + ends[:-1]) / 2, *betas[0])
        outcomes = stats.binom.pmf(np.arange(samples + 1), samples, chances[:, np.newaxis])
        return np.asarray(outcomes.T @ outcomes / len(chances))
    shares = stats.norm.cdf(CORRELATION**0.5 * nodes[:, np.newaxis] + (1 - CORRELATION) ** 0.5 * nodes)
    found = np.ones((len(nodes), 1))  # [common difficulty, outcomes so far]
    for beta in betas:
        outcomes = stats.binom.pmf(np.arange(samples + 1), samples, _quantiles(beta)(shares)[..., np.newaxis])
        own = np.einsum("cos,o->cs", outcomes, weights)
        found = (found[:, :, np.newaxis] * own[:, np.newaxis]).reshape(len(nodes), -1)
    return np.asarray(weights @ found).reshape([samples + 1] * len(betas))


def _quantiles(beta: Beta) -> Callable[[Array], Array]:
    """The quantile function by a table, since scipy's takes a microsecond a number."""
    grid = np.concatenate([[0.0], stats.norm.cdf(np.linspace(-5, 5, 4001)), [1.0]])
    values = stats.beta.ppf(grid, beta.a, beta.b)
    return lambda shares: np.interp(shares, grid, values)
