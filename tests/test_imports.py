"""What the light source folders import, each checked in an interpreter of its own."""

import ast
import subprocess
import sys

import pytest
from helpers.pairs import ROOT

PACKAGE = ROOT / "lm_eval_takeover"
IMPORTED = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(*sys.modules)
"""


def imported(folder):
    """Every module that is loaded once all modules of a folder are."""
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (PACKAGE / folder).glob("*.py")]
    done = subprocess.run([sys.executable, "-c", IMPORTED, *names], capture_output=True, text=True, check=True)
    return {name.removesuffix(".__init__") for name in done.stdout.split()}


@pytest.mark.parametrize("folder", ["storage", "answers", "tasks", "results"])
def test_light_folders_import_neither_torch_nor_transformers(folder):
    assert not imported(folder) & {"torch", "transformers"}


@pytest.mark.parametrize("folder", ["storage", "answers"])
def test_the_lowest_folders_import_nothing_of_the_package_but_themselves(folder):
    for path in (PACKAGE / folder).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            ours = [name for name in names if name.startswith("lm_eval_takeover")]
            assert all(f"{name}.".startswith(f"lm_eval_takeover.{folder}.") for name in ours), path


@pytest.mark.parametrize("folder", ["runs", "results", "tasks", "answers", "storage"])
def test_a_folder_and_its_modules_say_what_they_are(folder):
    for path in (PACKAGE / folder).glob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
