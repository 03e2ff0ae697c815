"""Says what breaks under the newest pre-release of lm-eval: it is installed into an environment of its own, and used there.

    python scripts/check_next_lm_eval.py                 the newest version that the index has, pre-releases included
    python scripts/check_next_lm_eval.py 0.5.0.dev1      this version
    python scripts/check_next_lm_eval.py --installed     the lm-eval of this environment, for comparison; installs nothing

With --tests, the tests of the stock command run on it, too.

Only lm-eval and this checkout are installed; everything else is seen through the environment that runs the script. One line
per check: `ok`, or the error that it ended with. Exit status 1 where something breaks.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent

_RUN = """
from lm_eval import simple_evaluate
def run(**options):
    arguments = {"batch_size": 16, **options.pop("model_args", {})}
    settings = {"limit": 2, "bootstrap_iters": 0, "gen_kwargs": {"max_gen_toks": 24}}
    return simple_evaluate("guided-takeover", model_args=arguments, tasks=["takeover_demo"], **(settings | options))
"""
# What each check runs, as `python -c`; a check that raises nothing is `ok`.
CHECKS = {
    "requirements": """
from importlib.metadata import PackageNotFoundError, requires, version
from packaging.requirements import Requirement
for one in map(Requirement, requires("lm_eval")):
    if one.marker is None or one.marker.evaluate({"extra": ""}):
        assert one.specifier.contains(version(one.name), prereleases=True), f"needs {one}"
""",
    "model type by the registry": """
from lm_eval.api.registry import get_model
assert get_model("guided-takeover").__name__ == "GuidedTakeover"
assert get_model("hf").__name__ == "HFLM"
""",
    "model type by its entry point alone": """
import os
assert os.environ["LM_EVAL_TAKEOVER_AUTOLOAD"] == "0"
from lm_eval.api.registry import get_model
assert get_model("guided-takeover").__name__ == "GuidedTakeover"
""",
    "every task file is found": """
from lm_eval.tasks import TaskManager
from lm_eval_takeover.storage.files import TASK_CONFIGS
found, files = set(TaskManager().all_tasks), {file.stem for file in TASK_CONFIGS.glob("takeover_*.yaml")}
assert files <= found, f"missing: {sorted(files - found)}"
""",
    "the demo task is built": """
from lm_eval_takeover.tasks.sampled import load_named_tasks
assert list(load_named_tasks(["takeover_demo"])) == ["takeover_demo"]
""",
    "process_results gives every metric": _RUN
    + """
from lm_eval_takeover.tasks.sampled import load_named_tasks
metrics = {one["metric"] for one in load_named_tasks(["takeover_demo"])["takeover_demo"].config.metric_list}
names = {name if isinstance(name, str) else name.__name__ for name in metrics}
scored = {name.partition(",")[0] for name in run()["results"]["takeover_demo"]}
assert names <= scored, f"missing: {sorted(names - scored)}"
""",
    "repeats are 8 texts of one seed": _RUN
    + """
texts = [run(torch_random_seed=seed)["samples"]["takeover_demo"][0]["resps"][0] for seed in (5, 5, 6)]
assert [len(one) for one in texts] == [8, 8, 8], [len(one) for one in texts]
assert texts[0] == texts[1] != texts[2], "the seed does not reach the texts"
assert len(set(texts[0])) > 1, "all repeats are the same text"
""",
    "log-likelihoods": """
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
model = get_model("guided-takeover").create_from_arg_obj({"policy": "base"}, {"batch_size": 4})
asked = Instance("loglikelihood", {}, ("Step", " 1"), idx=0, task_name="task", doc_id=0)
((value, greedy),) = model.loglikelihood([asked])
assert value < 0
""",
    "the command names the folder of its results": """
import pathlib, subprocess, sys, tempfile
with tempfile.TemporaryDirectory() as folder:
    options = "--model guided-takeover --model_args model=my-run --tasks takeover_demo --limit 1 --batch_size 8"
    words = [*options.split(), "--gen_kwargs", "max_gen_toks=24", "--output_path", folder]
    done = subprocess.run([sys.executable, "-m", "lm_eval", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr.strip().splitlines()[-1]
    assert [path.name for path in pathlib.Path(folder).iterdir()] == ["my-run"], "another folder"
    assert "my-run: realized rate" in done.stderr, "no closing line"
""",
    "an argument that is misspelt is one line": """
import subprocess, sys
words = "--model guided-takeover --model_args spike_ration=0.1 --tasks takeover_demo".split()
done = subprocess.run([sys.executable, "-m", "lm_eval", *words], capture_output=True, text=True)
assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr
""",
}


def install(folder: Path, version: str | None) -> Path:
    """An environment in `folder` with this checkout and an lm-eval; its Python."""
    wheels = folder / "wheels"
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    (ours,) = wheels.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    harness = "lm-eval" if version is None else f"lm-eval=={version}"
    subprocess.run([*pip, "--no-deps", "--pre", harness], check=True)
    subprocess.run([*pip, "--no-deps", "--no-index", str(ours)], check=True)
    # Behind the environment's own packages, so that they come first.
    (site / "zz_dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return python


def check(python: Path, only: str) -> Iterator[tuple[str, str]]:
    """(check, `ok` or what it ended with), for the checks with `only` in their name, as they end."""
    for name, code in CHECKS.items():
        if only not in name:
            continue
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"LM_EVAL_TAKEOVER_AUTOLOAD": "0" if "entry point" in name else "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, cwd=python.parent)
        yield name, "ok" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="of lm-eval (default: the newest, pre-releases included)")
    parser.add_argument("--installed", action="store_true", help="check the lm-eval of this environment")
    parser.add_argument("--only", default="", metavar="TEXT", help="only checks with this in their name")
    parser.add_argument("--tests", action="store_true", help="run the tests of the stock command, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = Path(sys.executable) if options.installed else install(Path(folder), options.version)
        ask = "from importlib.metadata import version; print(version('lm_eval'))"
        print(f"lm-eval {subprocess.run([python, '-c', ask], capture_output=True, text=True).stdout.strip()}")
        broken = 0
        for name, outcome in check(python, options.only):
            broken += outcome != "ok"
            print(f"  {name}: {outcome}", flush=True)
        if options.tests:
            tests = [str(python), "-m", "pytest", "-q", "-p", "no:randomly", "tests/test_lm_eval.py"]
            broken += subprocess.run(tests, cwd=ROOT).returncode
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
