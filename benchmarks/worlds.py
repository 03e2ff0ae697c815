"""Do two runs share an identity that they should not? What does a digest of all weights cost?

    python benchmarks/worlds.py                   2,000 pairs of worlds that differ in one input; what is opened and in no digest;
                                                  the same world in three processes, and with each variable changed
    python benchmarks/worlds.py --gigabytes 16    seconds to digest sparse weights of this size, without and with kept digests

A world is a pair with weights in a sub-folder, a plug-in with helpers and data, and a task with a grader of its own, which reads
a hidden file and a module in a folder `site-packages`, and asks for variables under names that no source shows. Its inputs are
what `sys.addaudithook` sees a run of lm_eval open or ask of the environment. A pair differs in one random bit of one of them, or
in the value of one variable. `NAMED` says what is opened and in no digest, and why.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

NAMED = {
    "Python and packages": "named by their versions in the facts of a run",
    "lm_eval_takeover": "named by its version; what changes texts has a schema",
    "the system": "of the machine: devices, locale, certificates",
    "caches": "copies of documents, which count by their content, and of what is downloaded",
    "written by the run": "its run_dir and results",
}
# Variables that say where something is, how fast it goes or what is printed.
VARIABLES = (
    "HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TORCH", "PYTORCH_", "CUDA_", "NVIDIA_", "ROCM_", "TRITON_", "LM_EVAL_", "LMEVAL_",
    "XDG_", "PYTHON", "PYARROW_", "ARROW_", "FSSPEC_", "TOKENIZERS_", "PEFT_", "ACCELERATE_", "DATASETS_", "TQDM_", "OMP_",
    "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_", "LC_", "SSL_", "REQUESTS_", "CURL_", "HTTP", "NO_", "ALL_",
    "COLORTERM", "TERM", "COLUMNS", "LINES", "CI",
)  # fmt: skip
ASKED = ("WORLD_LIMIT", "WORLD_ALIAS", "WORLD_FORMED", "WORLD_EXPANDED", "WORLD_CHILD")  # by the plug-in, and by the grader
PLUGIN = """\
import json, os
from pathlib import Path
from lm_eval_takeover import register_score
from aside import SCALE

TABLE = json.loads((Path(__file__).parent / "data" / "table.json").read_text())
LIMIT = float(os.environ.get("WORLD_LIMIT", "0"))


@register_score("of_world", needs_donor=False)
def of_world(logits):
    return logits.float().std(-1) * SCALE * TABLE["scale"] + LIMIT
"""
JUDGE = """\
import os, sys
from os import environ as E
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "lib"), str(HERE / "site-packages")]


def judge(doc, results):
    import grade, vendored

    read = grade.read(results[0].removeprefix((HERE / f".{'hidden'}" / ".words.txt").read_text()))
    asked = E.get("WORLD_ALIAS"), E.get(f"WORLD_{'FORMED'}"), os.path.expandvars("$WORLD_EXPANDED")
    return {"acc": float(read in (doc["answer"], vendored.ANSWER, *asked))}
"""
GRADE = """\
import os
from pathlib import Path

WORDS = (Path(__file__).parent / "words.txt").read_text().split()


def read(text):
    return next((word for word in text.split() if word not in WORDS), os.getenv("WORLD_CHILD"))
"""
TASK = """\
task: {task}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{problem}}}}"
doc_to_target: "{{{{answer}}}}"
process_results: !function {judge}
generation_kwargs: {{max_gen_toks: 4, until: []}}
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def build(folder: Path, pair: dict[str, Path]) -> None:
    """A world below this folder, of copies of a pair."""
    from safetensors.torch import load_file, save_file

    for role, source in pair.items():
        shutil.copytree(source, folder / role)
    weights = load_file(folder / "guide" / "model.safetensors")
    (folder / "guide" / "shards").mkdir()
    save_file(weights, folder / "guide" / "shards" / "a.safetensors", {"format": "pt"})
    (folder / "guide" / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shards/a.safetensors")}
    (folder / "guide" / "model.safetensors.index.json").write_text(json.dumps(index))
    documents = ({"problem": f"{number} + 4 =", "answer": "7"} for number in range(4))
    task = TASK.format(task="of_world", judge="judging.judge", data=folder / "documents.jsonl")
    files = {
        "plugin.py": PLUGIN, "aside.py": "from further import SCALE\n", "further.py": "SCALE = 2.0\n",
        "data/table.json": '{"scale": 3}', "tasks/judging.py": JUDGE, "tasks/lib/grade.py": GRADE,
        "tasks/lib/words.txt": "the a", "tasks/.hidden/.words.txt": "so", "tasks/site-packages/vendored.py": "ANSWER = '7'\n",
        "tasks/of_world.yaml": task,
        "documents.jsonl": "".join(json.dumps(each) + "\n" for each in documents),
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def identify(folder: Path) -> str:
    """What a run of this world is known by; an error where it cannot run. Runs its plug-in and its grader."""
    from lm_eval.tasks import TaskManager

    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.method.registry import digest_plugins, load_plugins
    from lm_eval_takeover.pair.ids import identify as identify_model
    from lm_eval_takeover.runs.identity import digest_task
    from lm_eval_takeover.storage.digests import digest_of

    models = [
        identify_model(name := str(folder / role), name, None, ModelArguments(), {}).revision for role in ("base", "guide")
    ]
    paths, modules, plugin = list(sys.path), set(sys.modules), str(folder / "plugin.py")
    sys.dont_write_bytecode = True  # it would hold a file as it was changed, within the second in which it is restored
    sys.path.insert(0, str(folder))
    try:
        load_plugins(plugin)
        (task,) = TaskManager(include_path=str(folder / "tasks"), include_defaults=False).load(["of_world"])["tasks"].values()
        task.process_results(task.eval_docs[0], [""])
        run = [digest_plugins(plugin), digest_task(task), list(task.eval_docs)]
    except Exception as error:  # a world that cannot run shares nothing
        run = [repr(error)]
    sys.path[:] = paths
    for name in sys.modules.keys() - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(f"{folder}{os.sep}"):
            del sys.modules[name]
    sys.dont_write_bytecode = False
    return digest_of([models, run])


def trace(folder: Path, **changed: str) -> dict[str, Any]:
    """What a run of this world opens for reading and asks for, and its identity. A second one resumes the first."""
    given = {"base": folder / "base", "guide": folder / "guide", "plugins": folder / "plugin.py", "score": "of_world", "tau": 1}
    given |= {"kappa": 0, "run_dir": folder / "run", "device": "cpu"}
    environment = os.environ | {"HF_HUB_OFFLINE": "1"} | dict.fromkeys(ASKED, "0") | changed
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[1])])
    code = [sys.executable, __file__, "--traced", str(folder), ",".join(f"{name}={value}" for name, value in given.items())]
    ended = subprocess.run(code, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    found: dict[str, Any] = json.loads((folder / "traced.json").read_text())
    return found


def run_traced(folder: Path, arguments: str) -> None:
    """Evaluate this world in this process, and write what it opens and asks for."""
    files, written, asked = set[str](), set[str](), defaultdict[Any, set[str]](set)

    def note(event: str, arguments: Any) -> None:
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            writes = (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
            (written if writes else files).add(os.path.realpath(os.fsdecode(arguments[0])))

    environment: Any = type(os.environ)
    plain = environment.__getitem__

    def ask(self: Any, name: str) -> Any:
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename.startswith("<frozen") and frame.f_back:  # `get` and `getenv`
            frame = frame.f_back
        asked[frame.f_code, frame.f_lineno].add(os.fsdecode(name))
        return plain(self, name)

    sys.addaudithook(note)
    environment.__getitem__ = ask
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=str(folder / "tasks"), include_defaults=False)
    results: Any = simple_evaluate(
        "guided-takeover", model_args=arguments, tasks=["of_world"], limit=2, task_manager=tasks, bootstrap_iters=0
    )
    read = sorted(file for file in files - written if os.path.isfile(file))
    variables = {name for names in asked.values() if len(names) < 20 for name in names}  # not of a line that copies all
    identity = results["config"]["takeover"]["identity"], results["configs"]["of_world"]["metadata"]["scorer"]
    (folder / "traced.json").write_text(json.dumps({"files": read, "variables": sorted(variables), "identity": identity}))


def find_undigested(folder: Path, files: list[str], variables: list[str]) -> list[str]:
    """What is opened or asked for, and neither in a digest nor named above, once this process has identified the world."""
    from lm_eval_takeover.storage import code_reach

    loaded = ("*.json", "*.jinja", "*.txt", "*.safetensors", "shards/*")
    covered = {str(file) for role in ("base", "guide") for pattern in loaded for file in (folder / role).glob(pattern)}
    roots = [str(folder / "plugin.py"), str(folder / "tasks" / "judging.py")]
    covered |= {*code_reach.list_files(roots), str(folder / "tasks" / "of_world.yaml"), str(folder / "documents.jsonl")}
    own = (
        str(folder / "run"),
        str(folder / "out"),
        str(Path(code_reach.__file__).parents[2]),
        str(Path(__file__).resolve().parents[1]),
    )
    files = [file for file in files if not file.endswith(".pyc")]  # their sources are there, too
    left = [
        file for file in files if file not in covered and not file.startswith(own) and not code_reach.is_elsewhere(file, "")
    ]
    asked = [f"${name}" for name in variables if not name.startswith(VARIABLES) and name not in {*code_reach.PLACES, *ASKED}]
    return left + [name for name in asked if name[1:] in os.environ]


def change(folder: Path, inputs: list[str], chooser: random.Random) -> str:
    """Change one random byte of one input, or a variable. Returns which."""
    name = chooser.choice([*inputs, *(f"${name}" for name in ASKED)])
    if name.startswith("$"):
        os.environ[name[1:]] = str(chooser.random())
        return name
    content = bytearray((folder / name).read_bytes())
    content[chooser.randrange(len(content))] ^= 1 << chooser.randrange(7)
    (folder / name).write_bytes(content)
    return name


def try_worlds(folder: Path, inputs: list[str], count: int, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """How often each input was changed, and the changes that left the identity as it was."""
    chooser, tried, shared = random.Random(seed), Counter[str](), []
    kept = {name: (folder / name).read_bytes() for name in inputs}
    os.environ |= dict.fromkeys(ASKED, "0")
    before = identify(folder)
    for _ in range(count):
        name = change(folder, inputs, chooser)
        tried[name] += 1
        shared += [name] if identify(folder) == before else []
        os.environ |= dict.fromkeys(ASKED, "0")
        if name in kept:
            (folder / name).write_bytes(kept[name])
    assert identify(folder) == before
    return tried, shared


def list_inputs(folder: Path, files: list[str]) -> list[str]:
    """The files of the world that a run opens, and the weights, which Rust opens."""
    opened = {Path(file).relative_to(folder) for file in files if Path(file).is_relative_to(folder)}
    opened |= {file.relative_to(folder) for role in ("base", "guide") for file in (folder / role).rglob("*.safetensors")}
    return sorted(str(name) for name in opened if name.parts[0] not in ("run", "out") and "__pycache__" not in name.parts)


def measure_digests(gigabytes: float) -> None:
    from lm_eval_takeover.pair.ids import find_revision

    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        model = Path(folder, "model")
        model.mkdir()
        (model / "config.json").write_text("{}")
        for number in range(4):
            with (model / f"model-{number}.safetensors").open("wb") as file:
                file.truncate(int(gigabytes * 2**30 / 4))
        time.sleep(2.1)  # a file that has just been written may change again within one tick
        for kept in ("no digest kept", "digests kept"):
            started = time.perf_counter()
            find_revision(str(model), None)
            print(f"{gigabytes:g} GB in 4 files, {kept}: {time.perf_counter() - started:.3f} s")


def main() -> None:
    if sys.argv[1:2] == ["--traced"]:
        return run_traced(Path(sys.argv[2]), sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--gigabytes", type=float)
    options = parser.parse_args()
    if options.gigabytes:
        return measure_digests(options.gigabytes)
    from lm_eval_takeover.demo import DEMO

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        build(folder, DEMO)
        traced = trace(folder)
        files, inputs = traced["files"], list_inputs(folder, traced["files"])
        identify(folder)
        print(f"{len(files)} files opened, {len(inputs)} inputs of the world; opened or asked for and in no digest:")
        print("\n".join(find_undigested(folder, files, traced["variables"])) or "nothing but:")
        print("\n".join(f"  {what}: {why}" for what, why in NAMED.items()))
        tried, shared = try_worlds(folder, inputs, options.count)
        print(
            f"{options.count:,} pairs of worlds that differ in one input: {len(shared)} share an identity {Counter(shared) or ''}"
        )
        print("\n".join(f"  {count:4}  {name}" for name, count in sorted(tried.items())))
        again = [trace(folder)["identity"] == traced["identity"]]
        shutil.rmtree(folder / "run")
        again += [trace(folder)["identity"] == traced["identity"]]
        print(f"the same world, resumed and in a new run_dir: {again.count(False)} of 2 have another identity")
        shared = [name for name in ASKED if trace(folder, **{name: "1"})["identity"] == traced["identity"]]
        print(f"one variable changed in a run of its own: {len(shared)} of {len(ASKED)} share an identity {shared or ''}")
    return None


if __name__ == "__main__":
    main()
