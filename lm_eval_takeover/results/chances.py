"""Estimates the chance to solve each problem from its score: a beta distribution over problems, fitted to a run."""

import numpy as np
from scipy.special import betaln

from lm_eval_takeover.results.statistics import Values


def fit_chances(shares: Values, samples: float) -> tuple[Values, Values]:
    """Fit each problem's beta distribution to the share of its correct samples. Returns its two shape parameters.

    The distribution over problems has the mean and the spread of the run, with the binomial noise of its samples taken off, so
    that a problem that was never solved is not taken for one that never will be.
    """
    mean = (shares.sum() * samples + 0.5) / (len(shares) * samples + 1)
    spread = float(shares.var(ddof=1)) / (mean * (1 - mean)) if len(shares) > 1 else 1.0
    agreement = np.clip((spread - 1 / samples) / (1 - 1 / samples), 0.01, 0.95) if samples > 1 else 0.5
    weight = 1 / agreement - 1
    correct = shares * samples
    return mean * weight + correct, (1 - mean) * weight + samples - correct


def expect_flips(shares: Values, samples: int) -> tuple[Values, Values]:
    """The chances that a second run, of the same model and another seed, rescues each problem and harms it.

    A problem is solved if any of its samples is: `E (1 - p)^n` of a beta distribution is a quotient of beta functions.
    """
    a, b = fit_chances(shares, samples)
    unsolved = np.exp(betaln(a, b + samples) - betaln(a, b))
    before = shares > 0
    return np.where(before, 0.0, 1 - unsolved), np.where(before, unsolved, 0.0)
