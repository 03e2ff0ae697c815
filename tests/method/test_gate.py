"""The gate against its definition, by hand and for any trajectory."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.gate import Gate, fires, fires_along, push


def plain(gate, scores):
    """Equation (5) in plain Python."""
    fired = []
    for t, s in enumerate(scores):
        recent = scores[max(0, t - gate.window) : t]
        local = t == 0 or gate.kappa == 0 or s > gate.kappa * (math.fsum(recent) / len(recent))
        fired.append(s > gate.tau and local)
    return fired


def step_by_step(gate, scores):
    recent, fired = torch.zeros(1, gate.window), []
    for t, s in enumerate(scores):
        score = torch.tensor([s])
        fired.append(bool(fires(gate, score, recent, t)))
        recent = push(recent, score)
    return fired


BY_HAND = [
    # tau, kappa, window, scores, expected
    (1.0, 2.0, 3, [1.5, 3.0, 3.1, 1.1, 9.0], [True, False, False, False, True]),  # means -, 1.5, 2.25, 2.533, 2.4
    (1.0, 2.0, 3, [1.5, 3.5], [True, True]),
    (1.0, 0.0, 3, [1.5, 1.0, 1.01], [True, False, True]),  # no window test; the threshold itself does not fire
    (0.0, 2.0, 3, [0.0, 0.0, 0.1], [False, False, True]),  # zeros never fire, a mean of zero stops nothing
    (0.5, 3.0, 50, [1.0, 0.0, 0.0, 1.1], [True, False, False, True]),  # w longer than the history: mean 1/3
    (0.5, 1.0, 2, [1.0, 1.0, 1.0], [True, False, False]),  # equal scores do not exceed their mean
    (1.0, 5.0, 1, [0.1, 2.0, 2.0], [False, True, False]),  # a takeover's score enters the window
    (1.0, 2.0, 2, [math.inf, 5.0, 5.0, 20.0], [True, False, False, True]),  # an infinite score blocks the window
    (1.0, 0.0, 2, [math.inf, 5.0], [True, True]),
]


@pytest.mark.parametrize(("tau", "kappa", "window", "scores", "expected"), BY_HAND)
def test_decisions_by_hand(tau, kappa, window, scores, expected):
    gate = Gate(tau, kappa, window)
    assert plain(gate, scores) == expected
    assert step_by_step(gate, scores) == expected
    assert fires_along(gate, torch.tensor(scores)).tolist() == expected


@given(st.lists(st.floats(0, 20, width=32), max_size=60), st.floats(0, 5), st.floats(0, 30), st.integers(1, 80))
def test_both_forms_equal_the_definition(scores, tau, kappa, window):
    gate = Gate(tau, kappa, window)
    expected = plain(gate, scores)
    assert step_by_step(gate, scores) == expected
    assert fires_along(gate, torch.tensor(scores, dtype=torch.float32)).tolist() == expected


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((math.nan, 1.0, 10), "tau=nan"),
        ((1.0, -2.0, 10), r"kappa=-2\.0"),
        ((1.0, math.nan, 10), "kappa=nan"),
        ((1.0, 1.0, 0), "window=0 is not at least 1 token; kappa=0 turns the window test off"),
    ],
)
def test_impossible_gates_are_refused(values, text):
    with pytest.raises(ArgumentError, match=text):
        Gate(*values)
