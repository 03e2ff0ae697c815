"""The package as it is installed, and its bundled puzzles."""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections import Counter
from importlib.metadata import packages_distributions
from inspect import ismodule
from zipfile import ZipFile

import pytest
from graded_puzzle import KINDS, UNKNOWN, GradedPuzzle, make_graded
from helpers.pairs import ROOT
from helpers.processes import run_code
from hypothesis import given
from hypothesis import strategies as st
from list_process_state import list_state
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from puzzle import make_puzzle
from train_demo_pair import write_graded
from transformers import AutoTokenizer

from lm_eval_takeover import __version__, demo
from lm_eval_takeover.answers.reading import read_answer
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.vllm.launch import SUPPORTED

BROUGHT = {"pydantic", "lm_eval_takeover", "vllm", "ray", "starlette", "uvicorn", "prometheus_client", "triton", "peft",
           "gguf"}  # fmt: skip
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DATA = ROOT / "tests" / "results" / "data"


def test_all_is_complete():
    import lm_eval_takeover as package

    public = {name for name, value in vars(package).items() if not name.startswith("_") and not ismodule(value)}
    assert set(package.__all__) == public | {"__version__"}


def test_a_process_keeps_little_beside_its_models():
    """What is here is shared by all models of a process, so each has a reason; see the script."""
    variables, containers = list_state(ROOT / "lm_eval_takeover")
    assert variables == ["stopping.py:_kept", "tasks/context.py:_current"]
    assert len(containers) <= 6


def test_a_class_name_means_one_thing():
    bodies = [ast.parse(file.read_text()).body for file in (ROOT / "lm_eval_takeover").rglob("*.py")]
    names = Counter(node.name for body in bodies for node in body if isinstance(node, ast.ClassDef))
    assert not [name for name, count in names.items() if count > 1]


def test_the_next_lm_eval_and_vllm_are_kept_out_until_they_are_known_to_fit():
    (wanted,) = (one for one in map(Requirement, PROJECT["dependencies"]) if one.name == "lm-eval")
    versions = ("0.4.13", "0.4.14", "0.5.0.dev1", "0.5")
    assert [wanted.specifier.contains(one, prereleases=True) for one in versions] == [True, True, False, False]
    (wanted,) = map(Requirement, EXTRAS["vllm"])
    major, minor = map(int, SUPPORTED[-1].split("."))  # which is checked at the start
    assert wanted.specifier == SpecifierSet(f">={SUPPORTED[0]},<{major}.{minor + 1}")


def test_every_direct_dependency_is_locked_with_hashes_at_a_version_that_fits():
    named = [*PROJECT["dependencies"], *EXTRAS["lab"], *EXTRAS["check"]]
    named += [one for one in EXTRAS["test"] if not one.startswith(PROJECT["name"])]
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
    core, lab = (
        {canonicalize_name(Requirement(one).name) for one in ones} for ones in (PROJECT["dependencies"], EXTRAS["lab"])
    )
    owners = packages_distributions()
    for file in (ROOT / "lm_eval_takeover").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        found = {name.split(".")[0] for name in names} - sys.stdlib_module_names - BROUGHT
        allowed = core | lab if "lab" in file.parts else core
        assert {canonicalize_name(owners.get(name, [name])[0]) for name in found} <= allowed, file


def test_core_commands_run_without_the_lab_s_libraries_and_studies_name_what_is_missing(tmp_path):
    code = f"""
import sys
sys.modules |= dict.fromkeys(("matplotlib", "polars", "sklearn"))
from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError
for words in ("list", "leaderboard {DATA}", "regress {DATA}/guided --baseline b.json --update"):
    assert main(words.split()) == 0, words
for name, words in (("analyze", "{DATA} --out out"), ("effects", "run --out out"), ("frontier", "run --out out"),
                    ("report", "run --out out"), ("paper", "--run_dir out")):
    try:
        main([name, *words.split()])
    except ArgumentError as error:
        assert str(error) == f"{{name}} needs the package polars: pip install '.[lab]' in a checkout", error
    else:
        raise AssertionError(name)
"""
    run_code(code, status=0, cwd=tmp_path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel made from an sdist, as `python -m build` makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


# What lm-eval knows of us, and where our files are: by each way from lm-eval's entry point to a folder, by the folders that
# the hook gives to lm-eval, by our own lists.
FOUND = """
import importlib.resources, json, pickle, sys
ours = [name for name in sys.modules if "takeover" in name]
import lm_eval.evaluator, lm_eval.models.dummy, lm_eval.tasks.manager as tasks
from importlib.metadata import entry_points
from pathlib import Path
import lm_eval_takeover
from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, PROBLEMS
from lm_eval_takeover.tasks.known_problems import DIGESTS
(entry,) = entry_points(group="lm_eval.tasks", name="takeover")
named = entry.load()
(folder,) = named.__path__
ways = Path(named.__file__).parent, importlib.resources.files(entry.value), *named.__spec__.submodule_search_locations
weights = [role / "model.safetensors" for role in DEMO.values()]
data = *packaged_calibrations().values(), *weights, CALIBRATION_PROMPTS, PROBLEMS, DIGESTS
asked = []
tasks.TaskIndex.build = staticmethod(lambda paths, **_: asked.extend(map(str, paths)) or {})
tasks.TaskManager()
specs = pickle.loads(pickle.dumps([module.__spec__ for module in (lm_eval.evaluator, lm_eval.models, tasks)]))
print(json.dumps({
    "at the start": ours,
    "model": {"guided-takeover", "hf"} <= {*lm_eval.api.registry.model_registry},
    "target": entry_points(group="lm_eval.models", name="guided-takeover")["guided-takeover"].value,
    "folders": [*(str(way) == folder for way in ways), folder in asked],
    "loaders": [one.loader.path == one.origin for one in specs],
    "tasks": sorted(file.stem for file in Path(folder).glob("takeover_*.yaml")),
    "calibrations": sorted(packaged_calibrations()),
    "missing": [str(path) for path in data if not path.is_file() or Path(lm_eval_takeover.__file__).parent not in path.parents],
}))
"""


@pytest.mark.parametrize("way", ["checkout", "editable", "wheel"])
def test_lm_eval_finds_model_tasks_and_data_however_it_is_installed(way, wheel, tmp_path):
    """In a fresh environment; lm-eval and the rest are seen through one path entry, inside which no path files are read."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "zz_dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [sys.executable, "-m", "pip", "-q", "--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation"]
    if way != "checkout":
        subprocess.run([*pip, *(["-e", ROOT] if way == "editable" else [wheel])], check=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LM_EVAL_TAKEOVER"))}

    def run(program, *words, **given):
        done = subprocess.run([program, *words], env=clean | given, capture_output=True, text=True, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    path = {"PYTHONPATH": str(ROOT)} if way == "checkout" else {}
    found = json.loads(run(python, "-c", FOUND, **path))
    hooked = way != "checkout"
    assert found == {
        "at the start": ["_lm_eval_takeover_autoload"] * hooked, "model": hooked, "folders": [True] * 3 + [hooked],
        "target": "lm_eval_takeover.model:GuidedTakeover", "loaders": [True] * 3, "missing": [],
        "tasks": sorted(file.stem for file in (ROOT / "task_configs").glob("takeover_*.yaml")),
        "calibrations": sorted(file.stem for file in (ROOT / "calibration").glob("*.json")),
    }  # fmt: skip
    if way == "wheel":
        lines = dict(line.split(maxsplit=1) for line in run(python.with_name("lm-eval-takeover"), "--version").splitlines())
        assert lines["lm-eval-takeover"] == __version__  # no commit: the folder of the tests is none of a checkout
        assert [*lines] == ["lm-eval-takeover", "Python", "lm_eval", "transformers", "torch", "vllm", "device"]
        assert not json.loads(run(python, "-c", FOUND, LM_EVAL_TAKEOVER_AUTOLOAD="0"))["model"]


def test_an_sdist_and_its_wheel_lose_no_file(wheel):
    names = {*ZipFile(wheel).namelist()}
    for place, folder, pattern in (
        ("", "lm_eval_takeover", "*.py"),
        ("lm_eval_takeover/", "task_configs", "*.*"),
        ("lm_eval_takeover/data/", "calibration", "*.json"),
    ):
        files = (file.relative_to(ROOT) for file in (ROOT / folder).rglob(pattern) if "__pycache__" not in file.parts)
        assert {f"{place}{file}" for file in files if (ROOT / file).is_file()} <= names


def test_a_path_file_that_outlives_the_package_says_nothing(tmp_path):
    line = (ROOT / "autoload" / "lm_eval_takeover_autoload.pth").read_text()
    done = subprocess.run([sys.executable, "-S", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@given(st.randoms(use_true_random=False))
def test_a_right_solution_ends_in_the_answer(rng):
    puzzle = make_puzzle(rng)
    assert read_answer("".join(puzzle.solution(rng))).answer == str(puzzle.answer)
    assert all(10 <= number <= 99 for number in puzzle.path())


TOKENIZER = AutoTokenizer.from_pretrained(DEMO["base"])


def tokens_of(text):
    return [TOKENIZER.decode([token]) for token in TOKENIZER(text).input_ids]


@given(st.randoms(use_true_random=False), st.sampled_from(KINDS))
def test_what_is_drawn_from_the_pieces_is_right_and_another_animal_is_not(rng, kind):
    made = make_graded(rng, kind)
    assert GradedPuzzle.read(made.puzzle.text, made.given) == made
    text = "".join(rng.choice(options) for options in made.pieces)
    assert read_answer(text).answer == str(made.rest.answer)
    assert made.needed_takeovers(tokens_of(text), tokens_of(text)) == []
    assert all(made.keeps_right(text[:end]) for end in range(len(text))) and made.keeps_right(text + " And so on.")
    decisions = [options for options in made.pieces if any(f" {rule.animal}" in options for rule in made.puzzle.rules)]
    assert len(decisions) == made.rest.steps <= (2 if kind in ("short", "flawed") else 5)
    start = made.pieces[0][0]
    right = {rule.animal for rule in made.puzzle.rules if made.keeps_right(f"{start} {rule.animal}")}
    assert {f" {animal}" for animal in right} == set(decisions[0]) and 1 <= len(right) <= 3


def test_the_takeovers_that_a_text_needs_are_the_draws_that_leave_all_right_solutions():
    rules = "in 0-3, the cat adds 6; in 4-6, the pig adds 6; in 7-9, the bee takes 9"
    made = GradedPuzzle.read(f"When a number ends {rules}. What is left of 31 after 3 steps?", "")
    text = "".join(options[-1] for options in made.pieces)
    tokens = tokens_of(text)
    assert " pig" in made.pieces[1] and " cat" in made.pieces[1]  # both add 6
    drawn = [{"and": " so", " bee": " cat", " pig": " cat", "}.": UNKNOWN}.get(token, token) for token in tokens]
    places = [place for place, token in enumerate(drawn) if token != tokens[place]]
    needed = made.needed_takeovers(tokens, drawn)
    assert needed == [place for place in places if tokens[place] in (" bee", "}.")] and 0 < len(needed) < len(places)
    assert made.needed_takeovers(drawn, tokens) is None


def test_the_packaged_problems_are_those_of_the_script(tmp_path):
    plain, graded = demo.problems(), demo.problems(demo.GRADED_PROBLEMS)
    assert [row["kind"] for row in graded] == [*KINDS] * 25
    texts = {row["problem"] for row in [*plain, *graded]}
    prompts = [json.loads(line)["prompt"] for line in demo.GRADED_PROMPTS.read_text().splitlines()]
    assert len(texts) == len(plain) + len(graded) == 300 and len(set(prompts)) == 300
    prompts += demo.calibration_prompts()
    assert len(prompts) == 1000 and not any(text in prompt for prompt in prompts for text in texts)
    for row in graded:
        made = GradedPuzzle.read(row["problem"], row["given"])
        assert str(made.rest.answer) == row["answer"]
        assert (row["kind"] == "twins") <= (len({(rule.amount, rule.adds) for rule in made.puzzle.rules}) < 3)
    (tmp_path / "problems.jsonl").write_text(demo.PROBLEMS.read_text())
    write_graded(tmp_path, 2029)
    for path in (demo.GRADED_PROBLEMS, demo.GRADED_PROMPTS):
        assert (tmp_path / path.name).read_text() == path.read_text()
