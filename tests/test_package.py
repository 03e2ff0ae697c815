"""What the package offers at its top, what it asks for and locks, and how it is checked."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from inspect import ismodule
from pathlib import Path

import pytest
from helpers.pairs import ROOT
from helpers.processes import environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from lm_eval_takeover.vllm.launch import SUPPORTED

BROUGHT = {
    "lm_eval_takeover",
    "vllm",
    "ray",
    "starlette",
    "uvicorn",
    "prometheus_client",
    "triton",
    "inspect_ai",
    "peft",
    "gguf",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_all_is_complete():
    import lm_eval_takeover as package

    public = {name for name, value in vars(package).items() if not name.startswith("_") and not ismodule(value)}
    assert set(package.__all__) == public | {"__version__"}


def test_the_next_lm_eval_is_kept_out_until_it_is_known_to_fit():
    (wanted,) = (one for one in map(Requirement, PROJECT["dependencies"]) if one.name == "lm-eval")
    versions = ("0.4.13", "0.4.14", "0.5.0.dev1", "0.5")
    assert [wanted.specifier.contains(one, prereleases=True) for one in versions] == [True, True, False, False]


def test_the_bound_of_vllm_is_that_which_is_checked_at_the_start():
    (wanted,) = map(Requirement, PROJECT["optional-dependencies"]["vllm"])
    major, minor = map(int, SUPPORTED.split("."))
    assert wanted.specifier == SpecifierSet(f">={SUPPORTED},<{major}.{minor + 1}")


def test_every_direct_dependency_is_locked_with_hashes_at_a_version_that_fits():
    extras = PROJECT["optional-dependencies"]
    named = [*PROJECT["dependencies"], *extras["lab"], *extras["check"]]
    named += [one for one in extras["test"] if not one.startswith(PROJECT["name"])]
    text = (ROOT / "requirements.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE))
    assert len(locked) == len(re.findall("==", text))
    versions = {canonicalize_name(name): version for name, version in locked.items()}
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("#", "")]
    for one in map(Requirement, [*named, *pinned]):
        assert one.name == "torch" or one.specifier.contains(versions[canonicalize_name(one.name)]), one
    assert "torch" not in versions and "://" not in text


def test_every_import_is_declared():
    """By the core and by the lab; what an option or a plug-in of others brings is imported where it is used."""
    extras = PROJECT["optional-dependencies"]
    core, lab = (
        {canonicalize_name(Requirement(one).name) for one in ones} for ones in (PROJECT["dependencies"], extras["lab"])
    )
    owners = packages_distributions()
    for file in (ROOT / "lm_eval_takeover").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        found = {name.split(".")[0] for name in names} - sys.stdlib_module_names - BROUGHT
        allowed = core | lab if "lab" in file.parts else core
        assert {canonicalize_name(owners.get(name, [name])[0]) for name in found} <= allowed, file


@pytest.mark.slow
def test_a_core_that_imports_the_lab_or_its_libraries_fails(tmp_path):
    shutil.copytree(ROOT / "lm_eval_takeover", tmp_path / "lm_eval_takeover", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in (("results/summary", "import lm_eval_takeover.lab.extra"), ("runs/facts", "import polars")):
        with (tmp_path / "lm_eval_takeover" / f"{name}.py").open("a") as file:
            file.write(f"\n\ndef planted():\n    {line}\n")
    call = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, env=environment() | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "lm_eval_takeover.results.summary -> lm_eval_takeover.lab.extra" in " ".join(done.stdout.split())
    assert "lm_eval_takeover.runs.facts -> polars" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_core_commands_run_without_the_lab_s_libraries_and_studies_name_what_is_missing(tmp_path):
    data = ROOT / "tests" / "results" / "data"
    code = f"""
import sys
sys.modules |= dict.fromkeys(("matplotlib", "polars", "sklearn"))
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError
for words in ("list", "leaderboard {data}", "regress {data}/guided --baseline b.json --update",
              "regress {data}/guided --baseline b.json"):
    assert main(words.split()) == 0, words
for name, words in (("analyze", "{data} --out out"), ("effects", "run --out out"), ("frontier", "run --out out"),
                    ("report", "run --out out"), ("paper", "--run_dir out")):
    try:
        main([name, *words.split()])
    except ArgumentError as error:
        assert str(error) == f"{{name}} needs the package polars: pip install '.[lab]' in a checkout", error
    else:
        raise AssertionError(name)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr


def test_make_test_runs_every_part_and_names_those_that_failed(tmp_path):
    part = tmp_path / "make"
    part.write_text('#!/bin/sh\necho "$1 runs"; [ "$1" != suite ]\n')
    part.chmod(0o755)
    call = ["make", "-s", "--no-print-directory", "-o", "install", "test", f"MAKE={part}"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["suite runs", "check runs", "test-vllm runs", "make test: FAILED: suite"]
    assert done.returncode == 2
