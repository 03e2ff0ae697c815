"""Do two runs share an identity that they should not? What does a digest of all weights cost?

    python benchmarks/worlds.py                   2,000 pairs of worlds that differ in one input; what is opened and in no digest
    python benchmarks/worlds.py --gigabytes 16    seconds to digest sparse weights of this size, without and with kept digests

A world is a pair with weights in a sub-folder, a plug-in with helpers and data, and a task with a grader of its own. Its inputs
are what `sys.addaudithook` sees a run of lm_eval open or ask of the environment. A pair differs in one random bit of one of them,
or in the value of one variable. `NAMED` says what is opened and in no digest, and why.
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
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "lib"))


def judge(doc, results):
    import grade

    return {"acc": float(grade.read(results[0]) == doc["answer"])}
"""
GRADE = """\
from pathlib import Path

WORDS = (Path(__file__).parent / "words.txt").read_text().split()


def read(text):
    return next((word for word in text.split() if word not in WORDS), "")
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
        "tasks/lib/words.txt": "the a", "tasks/of_world.yaml": task,
        "documents.jsonl": "".join(json.dumps(each) + "\n" for each in documents),
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def identify(folder: Path) -> str:
    """What a run of this world is known by; an error where it cannot run."""
    from lm_eval_takeover.arguments import ModelArguments
    from lm_eval_takeover.pair.ids import identify as identify_model
    from lm_eval_takeover.runs.identity import digest_task
    from lm_eval_takeover.storage.digests import digest_code, digest_of
    from lm_eval_takeover.tasks.sampled import find_tasks

    models = [
        identify_model(name := str(folder / role), name, None, ModelArguments(), {}).revision for role in ("base", "guide")
    ]
    paths = list(sys.path)
    try:
        (task,) = find_tasks(["of_world"], folder / "tasks").load(["of_world"])["tasks"].values()
        judged = digest_task(task)
    except Exception as error:  # a world that cannot run shares nothing
        judged = repr(error)
    sys.path[:] = paths
    return digest_of([models, digest_code([str(folder / "plugin.py")]), judged])


def trace(folder: Path) -> tuple[list[str], list[str]]:
    """The files that a run of this world opens for reading, and the variables that it asks for."""
    given = {"base": folder / "base", "guide": folder / "guide", "plugins": folder / "plugin.py", "score": "of_world", "tau": 1}
    given |= {"kappa": 0, "run_dir": folder / "run", "device": "cpu"}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(folder), "WORLD_LIMIT": "0"}
    code = [sys.executable, __file__, "--traced", str(folder), ",".join(f"{name}={value}" for name, value in given.items())]
    ended = subprocess.run(code, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    found = json.loads((folder / "traced.json").read_text())
    return found["files"], found["variables"]


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
    simple_evaluate("guided-takeover", model_args=arguments, tasks=["of_world"], limit=2, task_manager=tasks, bootstrap_iters=0)
    read = sorted(file for file in files - written if os.path.isfile(file))
    variables = {name for names in asked.values() if len(names) < 20 for name in names}  # not of a line that copies all
    (folder / "traced.json").write_text(json.dumps({"files": read, "variables": sorted(variables)}))


def find_undigested(folder: Path, files: list[str], variables: list[str]) -> list[str]:
    """What is opened or asked for, and neither in a digest nor named above."""
    from lm_eval_takeover.storage import digests

    loaded = ("*.json", "*.jinja", "*.txt", "*.safetensors", "shards/*")
    covered = {str(file) for role in ("base", "guide") for pattern in loaded for file in (folder / role).glob(pattern)}
    roots = [str(folder / "plugin.py"), str(folder / "tasks" / "judging.py")]
    covered |= {*digests.list_files(roots), str(folder / "tasks" / "of_world.yaml"), str(folder / "documents.jsonl")}
    own = (
        str(folder / "run"),
        str(folder / "out"),
        str(Path(digests.__file__).parents[2]),
        str(Path(__file__).resolve().parents[1]),
    )
    files = [file for file in files if not file.endswith(".pyc")]  # their sources are there, too
    left = [file for file in files if file not in covered and not file.startswith(own) and not digests.is_elsewhere(file)]
    asked = [
        f"${name}" for name in variables if not name.startswith(VARIABLES) and name not in digests.PLACES | {"WORLD_LIMIT"}
    ]
    return left + [name for name in asked if name[1:] in os.environ]


def change(folder: Path, inputs: list[str], chooser: random.Random) -> str:
    """Change one random byte of one input, or a variable. Returns which."""
    name = chooser.choice([*inputs, "$WORLD_LIMIT"])
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
    os.environ["WORLD_LIMIT"] = "0"
    before = identify(folder)
    for _ in range(count):
        name = change(folder, inputs, chooser)
        tried[name] += 1
        shared += [name] if identify(folder) == before else []
        os.environ["WORLD_LIMIT"] = "0"
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
        files, variables = trace(folder)
        inputs = list_inputs(folder, files)
        print(f"{len(files)} files opened, {len(inputs)} inputs of the world; opened or asked for and in no digest:")
        print("\n".join(find_undigested(folder, files, variables)) or "nothing but:")
        print("\n".join(f"  {what}: {why}" for what, why in NAMED.items()))
        tried, shared = try_worlds(folder, inputs, options.count)
        print(
            f"{options.count:,} pairs of worlds that differ in one input: {len(shared)} share an identity {Counter(shared) or ''}"
        )
        print("\n".join(f"  {count:4}  {name}" for name, count in sorted(tried.items())))
    return None


if __name__ == "__main__":
    main()
