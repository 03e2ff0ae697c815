"""Writes requirements.lock: every package of the tested environment with the hashes of its files, torch apart.

    python scripts/renew_lock.py

Installs what pyproject.toml and constraints.txt ask for into a fresh environment, and lets uv look up the hashes of it.
torch is left out: its build differs between machines, so `make install` takes it by its exact version.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
HEAD = "# Written by scripts/renew_lock.py. Every package of the tested environment (Python 3.11) but torch.\n"
_APART = ("torch", "pip", "setuptools", "lm-eval-takeover", "nvidia-", "triton", "cuda-")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        tested, tool = make_environment(Path(folder) / "tested"), make_environment(Path(folder) / "tool")
        call(tested, "pip", "install", "-q", "-c", "constraints.txt", "torch")
        call(tested, "pip", "install", "-q", "-c", "constraints.txt", ".[test,check]")
        call(tool, "pip", "install", "-q", "uv")
        listed = call(tested, "pip", "list", "--format=freeze").splitlines()
        exact = [line for line in listed if not line.lower().replace("_", "-").startswith(_APART)]
        (Path(folder) / "exact.txt").write_text("\n".join(exact) + "\n")
        options = ["--no-deps", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "-q"]
        locked = call(tool, "uv", "pip", "compile", "--python-version", "3.11", *options, f"{folder}/exact.txt")
    LOCK.write_text(HEAD + locked)
    print(f"{len(exact)} packages -> {LOCK.name}")
    return 0


def make_environment(folder: Path) -> Path:
    """The Python of a new environment."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def call(python: Path, *words: str) -> str:
    """What `python -m WORDS` prints."""
    done = subprocess.run([python, "-m", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
