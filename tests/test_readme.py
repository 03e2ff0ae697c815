"""The README says what the code does: every argument, every dependency."""

import re
import tomllib
from dataclasses import fields
from inspect import ismodule

from helpers.pairs import ROOT

from lm_eval_takeover.arguments import ModelArguments

README = (ROOT / "README.md").read_text()


def test_every_model_argument_is_described():
    described = set(re.findall(r"^\| `([^|]*)` \|", README, re.MULTILINE))
    names = {name.strip("` ") for entry in described for name in entry.split("`, `")}
    assert {field.name for field in fields(ModelArguments)} <= names


def test_every_dependency_is_named_with_what_it_does():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    for dependency in wanted:
        name = re.match(r"[\w-]+", dependency)[0]
        assert re.search(rf"^\| `{name}` \| \w", README, re.MULTILINE), f"{name} is not in the README's table"


def test_all_is_complete():
    import lm_eval_takeover

    public = {
        name for name, value in vars(lm_eval_takeover).items() if not name.startswith("_") and not ismodule(value)
    }
    assert set(lm_eval_takeover.__all__) == public | {"__version__"}
