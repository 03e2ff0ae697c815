"""The import hook, from a wheel in a fresh environment: found by the stock lm-eval, and costs next to nothing."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.pairs import ROOT

from lm_eval_takeover import __version__
from lm_eval_takeover.storage.paths import TASK_CONFIGS

pytestmark = pytest.mark.slow
HELPERS = str(ROOT / "tests" / "helpers")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel made from an sdist, as `python -m build` makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def install(folder, *words):
    """Python of a fresh environment with our package; lm-eval and the rest are seen through one path entry.

    Path files inside that entry are not read, so what is found there of an editable install of ours stays unknown.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    (site,) = (folder / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-build-isolation"]
    (site / "zz_dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    if words:
        subprocess.run([*pip, "--quiet", "--disable-pip-version-check", *words], check=True)
    return python


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    return install(tmp_path_factory.mktemp("installed"), wheel)


def run(program, *words, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LM_EVAL_TAKEOVER"))}
    done = subprocess.run([program, *words], env=clean | environment, capture_output=True, text=True, cwd=Path(program).parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_of_lm_eval_may_be_imported_first(python):
    known = "import lm_eval.models; from lm_eval.api.registry import model_registry as known"
    code = f"import lm_eval.models.dummy; {known}; print('hf' in known, 'guided-takeover' in known)"
    assert run(python, "-c", code) == "True True"


@pytest.mark.parametrize("way", ["checkout", "editable", "wheel"])
def test_tasks_calibrations_and_data_are_found_however_it_is_installed(way, python, tmp_path):
    """By the folder that the hook gives to lm-eval, by each way from lm-eval's entry point to a folder, by our own lists."""
    words = {"checkout": [], "editable": ["-e", ROOT]}
    python = install(tmp_path / "venv", *words[way]) if way in words else python
    code = """
import importlib.resources
from importlib.metadata import entry_points
from pathlib import Path
import lm_eval_takeover
from lm_eval_takeover.calibration.files import packaged_calibrations
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, DEMO, PROBLEMS
from lm_eval_takeover.storage.paths import TASK_CONFIGS
from lm_eval_takeover.tasks.known_problems import DIGESTS
(entry,) = entry_points(group="lm_eval.tasks", name="takeover")
named = entry.load()
(folder,) = named.__path__
ways = Path(named.__file__).parent, importlib.resources.files(entry.value), *named.__spec__.submodule_search_locations
assert {str(way) for way in ways} == {folder}, ways
for place in (TASK_CONFIGS, Path(folder)):
    print(*(file.stem for file in place.glob("takeover_*.yaml")))
weights = [role / "model.safetensors" for role in DEMO.values()]
data = *packaged_calibrations().values(), *weights, CALIBRATION_PROMPTS, PROBLEMS, DIGESTS
assert all(Path(lm_eval_takeover.__file__).parent in path.parents and path.is_file() for path in data), data
print(*packaged_calibrations())
"""
    *tasks, calibrations = run(python, "-c", code, PYTHONPATH=str(ROOT) if way == "checkout" else "").split("\n")
    assert [set(line.split()) for line in tasks] == 2 * [
        {file.stem for file in (ROOT / "task_configs").glob("takeover_*.yaml")}
    ]
    assert set(calibrations.split()) == {file.stem for file in (ROOT / "calibration").glob("*.json")}


def test_an_sdist_and_its_wheel_lose_no_file(wheel):
    names = {*ZipFile(wheel).namelist()}
    for place, folder, pattern in (
        ("", "lm_eval_takeover", "*.py"),
        ("lm_eval_takeover/", "task_configs", "*.*"),
        ("lm_eval_takeover/data/", "calibration", "*.json"),
    ):
        files = (file.relative_to(ROOT) for file in (ROOT / folder).rglob(pattern) if "__pycache__" not in file.parts)
        assert {f"{place}{file}" for file in files if (ROOT / file).is_file()} <= names


def test_the_model_and_tasks_are_found_from_the_wheel_and_loaders_of_lm_eval_can_be_pickled(python, shared_folder):
    code = (
        "from lm_eval.api.registry import get_model; print(get_model('guided-takeover').__module__, get_model('hf').__name__); "
        f"import sys; sys.path.append({HELPERS!r}); from read_once import *; read_harness_once(Path({str(shared_folder)!r})); "
        "import lm_eval_takeover; manager = tasks.TaskManager(); print(lm_eval_takeover.__file__); "
        "print('gsm8k' in manager.all_tasks, manager.include_path); print(manager.task_index['takeover_demo'].yaml_path); "
        "import pickle, lm_eval.evaluator as evaluator, lm_eval.models as models; from lm_eval.tasks import manager as tasks; "
        "specs = [module.__spec__ for module in (evaluator, models, tasks)]; again = pickle.loads(pickle.dumps(specs)); "
        "print(*(f'{one.name} {type(one.loader).__name__} {one.loader.path == one.origin}' for one in again), sep=', '); "
        "print(*(name for name in manager.all_tasks if name.startswith('takeover')))"
    )
    models, where, theirs, path, pickled, listed = run(python, "-c", code).splitlines()
    assert models == "lm_eval_takeover.model HFLM"
    assert Path(python).parent.parent in Path(where).parents and theirs == "True None"
    assert Path(path) == Path(where).parent / "task_configs" / "takeover_demo.yaml"
    modules = ("lm_eval.evaluator", "lm_eval.models", "lm_eval.tasks.manager")
    assert pickled == ", ".join(f"{name} _Loader True" for name in modules)
    assert {file.stem for file in TASK_CONFIGS.glob("takeover_*.yaml")} <= {*listed.split()}


def test_the_console_script_works(python):
    script = Path(python).with_name("lm-eval-takeover")
    assert run(script, "--version") == __version__
    listed = run(script, "--help")
    assert all(command in listed for command in ("calibrate", "compare", "rescore"))


def test_a_bare_python_imports_the_hook_only(python):
    code = "import sys; print([m for m in sys.modules if 'takeover' in m])"
    assert run(python, "-c", code) == "['_lm_eval_takeover_autoload']"


def test_a_path_file_that_outlives_the_package_says_nothing(tmp_path):
    line = (ROOT / "lm_eval_takeover_autoload.pth").read_text()
    done = subprocess.run([sys.executable, "-S", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_with_the_switch_off_the_entry_points_name_the_model_and_the_folder_of_every_task_file(python):
    code = """
import sys
from importlib.metadata import entry_points
from lm_eval.tasks import TaskManager
import lm_eval.models
print(any("takeover" in str(finder) for finder in sys.meta_path), "guided-takeover" in lm_eval.api.registry.model_registry)
(entry,) = entry_points(group="lm_eval.models", name="guided-takeover")
print(entry.value)
(entry,) = entry_points(group="lm_eval.tasks", name="takeover")
print(*sorted(TaskManager(include_path=entry.load().__path__[0], include_defaults=False).all_tasks))
"""
    *hooked, model, tasks = run(python, "-c", code, LM_EVAL_TAKEOVER_AUTOLOAD="0").splitlines()
    assert (hooked, model) == (["False False"], "lm_eval_takeover.model:GuidedTakeover")
    assert {file.stem for file in TASK_CONFIGS.glob("takeover_*.yaml")} <= set(tasks.split())
