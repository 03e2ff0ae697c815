"""Makes an environment with the lowest or the newest versions of the dependencies that pyproject.toml allows.

    make test-lowest, make test-newest
    python scripts/install_versions.py lowest|newest FOLDER [--dry_run]

torch has the version of constraints.txt in both, since another one may bring another build of several GB.
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def list_lowest(dependencies: list[str]) -> list[str]:
    """`name==version` of each dependency that has a lowest version; torch apart."""
    pairs = [(one.name, spec) for one in map(Requirement, dependencies) for spec in one.specifier if one.name != "torch"]
    return [f"{name}=={spec.version}" for name, spec in pairs if spec.operator == ">="]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("versions", choices=("lowest", "newest"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dry_run", action="store_true", help="say what would be installed; install only torch")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    venv.create(options.folder, with_pip=True)
    pip = [str(options.folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
        lowest = []
        if options.versions == "lowest":
            # The lowest matplotlib calls functions that a newer pyparsing warns of.
            lowest = [*list_lowest(project["dependencies"] + project["optional-dependencies"]["lab"]), "pyparsing<3.3"]
        file.write("\n".join([torch, *lowest]))
        file.flush()
        subprocess.run([*pip, "-q", torch], check=True)  # alone: the exact version keeps the CPU build that pip finds
        words = ["--dry-run"] if options.dry_run else ["-q"]
        return subprocess.run([*pip, *words, "-c", file.name, "-e", ".[test]"], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
