"""Says what of this package would break under another version of vLLM: its source is read, nothing of it is installed or run.

    python scripts/check_next_vllm.py 0.34.0          this version: its wheel is downloaded, some hundred megabytes
    python scripts/check_next_vllm.py FOLDER          the folder that holds vLLM's folder `vllm`: a checkout, or an unpacked wheel

One line for each function, class, parameter or attribute that is used and is not as expected. Exit status 1 where there is one.
Names and parameters are compared, not what they do: run `make test-vllm` under a version before it is called tested.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from lm_eval_takeover.vllm.hooks import OTHERS, Hook, find_faults
from lm_eval_takeover.vllm.versions import EVERY_HOOK

ROOT = Path(__file__).parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="VERSION|FOLDER")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.source)
        if not folder.is_dir():
            folder = download(options.source, Path(scratch))
        return report(folder)


def download(version: str, folder: Path) -> Path:
    """The Python files of a version's wheel."""
    words = ["download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "-d", str(folder)]
    if subprocess.run([sys.executable, "-m", "pip", *words, f"vllm=={version}"]).returncode:
        sys.exit(f"{version} is no folder, and pip finds no wheel of such a version of vLLM")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
    wheel.unlink()
    return folder


def list_imports(package: str, folder: Path) -> tuple[Hook, ...]:
    """What the Python files of a folder import from a package."""
    statements = (
        node
        for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
    )
    names = {(str(node.module), alias.name) for node in statements for alias in node.names}
    return tuple((module, "", name) for module, name in sorted(names))


def report(folder: Path) -> int:
    if not (folder / "vllm" / "__init__.py").is_file():
        print(f"{folder} has no folder 'vllm' with Python files")
        return 2
    hooks = EVERY_HOOK + list_imports("vllm", ROOT / "lm_eval_takeover")
    faults = find_faults(folder, hooks)
    for fault in faults:
        print(fault)
    counts = [(module, max(len([name for name in names.split() if name != OTHERS]), 1)) for module, _, names in EVERY_HOOK]
    private = sum(count for module, count in counts if module.startswith("vllm.v1"))
    used = sum(count for _, count in counts)
    print(f"{used} names are looked up, {private} of them in vllm.v1; {len(faults)} are not as expected")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
