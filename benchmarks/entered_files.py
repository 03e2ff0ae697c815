"""How much of this package does one run enter, and how much do the commands on it?

    python benchmarks/entered_files.py [--files]

Traces, each in a process of its own and its children, with `sys.setprofile`: one `lm_eval` run (2 problems of the demo, with a
run_dir), one `compare` (3 rows by 2 problems), and `leaderboard` on what the latter left. Prints by command how many functions of
ours are entered, lambdas and comprehensions apart, and in how many files; with `--files` also their names. Takes minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import lm_eval_takeover

PACKAGE = Path(lm_eval_takeover.__file__).parent
RUN = ["--model", "guided-takeover", "--tasks", "takeover_demo", "--limit", "2", "--batch_size", "16", "--device", "cpu"]
COMMANDS = {
    "lm_eval": ["lm_eval", "run", *RUN, "--model_args", "run_dir=run,tau=1.5,kappa=0", "--output_path", "results"],
    "compare": ["lm-eval-takeover", "compare", "--tasks", "takeover_demo", "--rows", "base,random,guide", "--rates", "0.05",
                "--limit", "2", "--device", "cpu", "--run_dir", "compared"],
    "leaderboard": ["lm-eval-takeover", "leaderboard", "compared"],
}  # fmt: skip
# In each process: as it starts, and once more in each child that is forked.
HOOK = """
import atexit, json, os, sys, threading
entered, package, folder = set(), os.environ["ENTERED_PACKAGE"], os.environ["ENTERED_FOLDER"]

def see(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        entered.add((code.co_filename, code.co_qualname, code.co_firstlineno, code.co_flags & 2))

def save():
    sys.setprofile(None)
    with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as stream:
        json.dump(sorted(entered), stream)

leave = os._exit
os._exit = lambda status: (save(), leave(status))  # how a forked child ends
atexit.register(save)
threading.setprofile(see)
sys.setprofile(see)
"""


def trace(words: list[str], folder: Path, work: Path) -> tuple[set[str], set[tuple[str, str, int]]]:
    """The files and the functions of ours that a command and its children enter."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOOK)
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    more = {"PYTHONPATH": paths, "ENTERED_PACKAGE": str(PACKAGE), "ENTERED_FOLDER": str(folder), "HF_HUB_OFFLINE": "1"}
    program = Path(sys.executable).with_name(words[0])
    done = subprocess.run([program, *words[1:]], cwd=work, env=os.environ | more, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr[-2000:]}")
    calls = [call for path in folder.glob("*.json") for call in json.loads(path.read_text())]
    functions = {(name, function, line) for name, function, line, is_function in calls if is_function and function[-1] != ">"}
    return {name for name, *_ in functions}, functions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="also print the names of the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        for name, words in COMMANDS.items():
            files, functions = trace(words, Path(temporary) / name, Path(temporary))
            print(f"{name:12} {len(files):4} files {len(functions):5} functions")
            for file in sorted(files) if options.files else ():
                print(f"    {Path(file).relative_to(PACKAGE)}")


if __name__ == "__main__":
    main()
