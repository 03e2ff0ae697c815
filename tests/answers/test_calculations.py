"""What an equation gives, and that one which is still to be solved gives nothing."""

import pytest

from lm_eval_takeover.answers.calculations import COMPUTED, drop_calculations, names_value, read_equation, read_result


@pytest.mark.parametrize(
    ("equation", "given"),
    [
        ("x = 2 + 3 = 5.", "x = 5"),
        (r"\sqrt{3600} = \sqrt{60^2} = 60", "60"),
        ("(x,y) = (2^3 + 7, -29) = (15,-29)", "(15,-29)"),
        ("3x = 6", None),
        ("x^2 + 1 = 5", None),
        (r"x \ge 4 = 2^2", None),
        ("a = 2, b = 3", None),
        ("x =", None),
        ("5", None),
    ],
)
def test_equations(equation, given):
    assert read_equation(equation) == given


def test_results():
    assert read_result("ad - bc = 2 - 3 = -1") == "-1"
    assert read_result("f(1) + f(2) = 5") == "5"
    assert read_result("3x + 2 = 8") == "3x + 2 = 8"
    assert read_result("5") == "5"


def test_names():
    assert all(map(names_value, ("x", "f(2)", "P(A)", "a + b", "10C3", "2 + 3", "AB/BC")))
    assert not any(map(names_value, ("3x", "x^2 + 1", "2x - y")))


def test_calculations_before_a_result():
    assert drop_calculations("needs 30 + 60 = 90 eggs") == f"needs {COMPUTED} 90 eggs"
    assert drop_calculations("16 red tulips + 12 tulips = 28 tulips") == f"{COMPUTED} 28 tulips"
    for text in ("3 * 4 = 12 + 5", "x + 3 = 7", "2 + 3 = 5x = 10", "no sign at all"):
        assert drop_calculations(text) == text
