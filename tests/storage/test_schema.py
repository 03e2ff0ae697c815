"""Values of others against annotations: what passes, and what each error names."""

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from lm_eval_takeover.storage.schema import Positive, Share, check


@dataclass(frozen=True)
class Model:
    id: str
    revision: str | None = None


@dataclass(frozen=True)
class Pair:
    base: Model
    direction: Literal["forward", "reverse"]
    rates: tuple[Share, ...] = ()
    counts: dict[str, Positive] = field(default_factory=dict)


class Facts(TypedDict):
    seed: int | None
    tau: NotRequired[float]


def test_dataclasses_are_built_and_a_typed_dict_keeps_what_it_does_not_know():
    value = {"base": {"id": "a"}, "direction": "reverse", "rates": [0, 0.5], "counts": {"x": 3}}
    assert check(value, Pair) == Pair(Model("a"), "reverse", (0.0, 0.5), {"x": 3})
    assert check({"seed": None, "other": [1]}, Facts) == {"seed": None, "other": [1]}


@pytest.mark.parametrize(
    ("value", "hint", "text"),
    [
        ([], Pair, r"field 'x' is \[\], expected an object"),
        ({"direction": "forward"}, Pair, "field 'x.base' is missing, expected an object"),
        ({"base": {"id": 3}, "direction": "forward"}, Pair, "field 'x.base.id' is 3, expected a text"),
        ({"base": {"id": ""}, "direction": "up"}, Pair, "'x.direction' is \"up\", expected \"forward\" or \"reverse\""),
        ({"id": "a", "revison": "b"}, Model, "field 'x.revison' is not known; known: id, revision"),
        ({"id": "a", "revision": 1}, Model, "field 'x.revision' is 1, expected a text"),
        ([0, 1.5], list[Share], r"field 'x\[1\]' is 1.5, expected a number from 0 to 1"),
        ([True], list[Share], r"field 'x\[0\]' is true, expected a number from 0 to 1"),
        ({"a": 0}, dict[str, Positive], "field 'x.a' is 0, expected a whole number of at least 1"),
        ({"a\n\u202e": 0}, dict[str, str], r"field 'x.a\\n\\u202e' is 0"),
        (float("nan"), float, "field 'x' is NaN, expected a number"),
        (10**400, float, r"field 'x' is 1000000000000000000000000000000000000\.\.\., expected a number"),
        (2**64, int, "expected a whole number"),
        (1.0, int, "expected a whole number"),
        ("a", int | list[int] | None, "field 'x' is \"a\", expected a whole number or a list or null"),
        (["a"], tuple[str, int], "field 'x' has 1 items, expected 2"),
        (["a", "b"], tuple[str, int], r"field 'x\[1\]' is \"b\", expected a whole number"),
        ({"tau": 1}, Facts, "field 'x.seed' is missing, expected a whole number or null"),
        ({"seed": 1, "tau": "1"}, Facts, "field 'x.tau' is \"1\", expected a number"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_its_value_and_what_was_expected(value: Any, hint: Any, text: str):
    with pytest.raises(ValueError, match=text):
        check(value, hint, "x")
