"""What the package offers at its top, what it asks for, and how it is checked."""

import subprocess
import tomllib
from inspect import ismodule

from helpers.pairs import ROOT
from packaging.requirements import Requirement


def test_all_is_complete():
    import lm_eval_takeover

    public = {
        name for name, value in vars(lm_eval_takeover).items() if not name.startswith("_") and not ismodule(value)
    }
    assert set(lm_eval_takeover.__all__) == public | {"__version__"}


def test_the_next_lm_eval_is_kept_out_until_it_is_known_to_fit():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (one for one in map(Requirement, project["dependencies"]) if one.name == "lm-eval")
    fits = {
        version: wanted.specifier.contains(version, prereleases=True)
        for version in ("0.4.13", "0.4.14", "0.5.0.dev1", "0.5")
    }
    assert fits == {"0.4.13": True, "0.4.14": True, "0.5.0.dev1": False, "0.5": False}


def test_make_test_runs_every_part_and_names_those_that_failed(tmp_path):
    part = tmp_path / "make"
    part.write_text('#!/bin/sh\necho "$1 runs"; [ "$1" != suite ]\n')
    part.chmod(0o755)
    call = ["make", "-s", "--no-print-directory", "-o", "install", "test", f"MAKE={part}"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["check runs", "suite runs", "test-vllm runs", "make test: FAILED: suite"]
    assert done.returncode == 2
