"""The digest of code changes with everything that the code reads, and with nothing that it writes."""

import importlib
import json
import os
import sys

import pytest

from lm_eval_takeover.storage import digests
from lm_eval_takeover.storage.digests import digest_path

MAIN = """\
import json, os
from pathlib import Path
import yaml
import aside
from lm_eval_takeover import register_score

HERE = Path(__file__).parent
TABLE = json.loads((HERE / "data" / "table.json").read_text())
COMPUTED = Path(__file__).with_suffix(".cfg").read_text()


def judge(text):
    import late
    from package.inner import deep

    name = os.environ.get("JUDGED_BY")
    with open("log.txt", "a") as log:
        log.write(text)
    (HERE / "written.txt").write_text(text)
    return (HERE / "late.txt").read_text()
"""
WORLD = {
    "main.py": MAIN, "aside.py": "from other import x\n", "other.py": "x = 1\n", "late.py": "import package\n",
    "package/__init__.py": "from . import one\n", "package/one.py": "from .two import y\n", "package/two.py": "y = 1\n",
    "package/inner/__init__.py": "", "package/inner/deep.py": "from ..three import z\n", "package/three.py": "z = 1\n",
    "data/table.json": "[1]", "main.cfg": "a", "late.txt": "b",
}  # fmt: skip
BESIDE = {"log.txt": "", "written.txt": "", "unused.py": "", "run/journal.sqlite": "", "data/other.json": ""}


@pytest.fixture
def world(tmp_path, monkeypatch):
    for name, text in (WORLD | BESIDE).items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    digests.watch_opens()
    importlib.import_module("main")
    yield tmp_path
    for name in ("main", "aside", "other"):
        del sys.modules[name]


def test_a_digest_changes_with_all_that_is_reached_and_with_nothing_else(world, monkeypatch):
    def digest():
        return digests.digest_code([str(world / "main.py")])

    before = digest()
    for name in BESIDE:
        (world / name).write_text("changed")
        assert digest() == before, name
    for name, text in WORLD.items():
        (world / name).write_text(text + "\n# changed")
        assert digest() != before, name
        (world / name).write_text(text)
        assert digest() == before, name
    monkeypatch.setenv("JUDGED_BY", "someone")
    assert digest() != before
    monkeypatch.delenv("JUDGED_BY")
    monkeypatch.setattr(digests, "find_version", lambda name: "0" if name == "yaml" else "1")
    assert digest() != before
    assert ("lm_eval_takeover", "") in digests.describe_code([str(world / "main.py")])  # by its schema, not by its bytes


def test_what_code_opens_by_a_name_that_it_makes_counts_once_it_is_open(world):
    (world / "extra.txt").write_text("x")
    before = digests.digest_code([str(world / "main.py")])
    exec(compile("open(chr(101) + 'xtra.txt').close()", str(world / "main.py"), "exec"))
    assert str(world / "extra.txt") in digests.list_files([str(world / "main.py")])
    assert digests.digest_code([str(world / "main.py")]) != before


def test_a_large_file_is_read_once_until_its_size_times_or_inode_change(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lm_eval_takeover.storage.digests._KEPT", 4)
    path, folder = tmp_path / "weights", tmp_path / "cache/lm-eval-takeover/digests"
    path.write_bytes(b"12345")
    before = digest_path(path)
    assert not folder.exists()  # it may change again in the same tick of the clock
    monkeypatch.setattr("lm_eval_takeover.storage.digests._SETTLED", -1.0)
    assert digest_path(path) == before
    (kept,) = folder.iterdir()
    kept.write_text("0" * 32)
    assert digest_path(path) == "0" * 32  # it was not read
    kept.write_text("no digest")
    times = path.stat()
    path.write_bytes(b"12346")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as rsync and cp -p do
    assert digest_path(path) != before


def test_tasks_count_by_their_file_code_and_documents(tmp_path):
    from lm_eval_takeover.runs.identity import digest_task, digest_task_code
    from lm_eval_takeover.tasks.sampled import load_named_tasks

    files = {
        "mine.yaml": "task: mine\ndataset_path: json\ndataset_kwargs: {data_files: {test: %s}}\ntest_split: test\n"
        "output_type: generate_until\ndoc_to_text: '{{problem}}'\ndoc_to_target: '{{answer}}'\n"
        "process_results: !function judging.judge\nmetric_list: [{metric: acc}]\n" % (tmp_path / "docs.jsonl"),
        "judging.py": "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent / 'lib'))\n"
        "from grading import grade\n\n\ndef judge(doc, results):\n    return {'acc': grade(results[0])}\n",
        "lib/grading.py": "def grade(text):\n    return 0.0\n",
        "docs.jsonl": json.dumps({"problem": "3 + 4", "answer": "7"}) + "\n",
    }
    (tmp_path / "lib").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def digest():
        (task,) = load_named_tasks(["mine"], tmp_path).values()
        return digest_task_code(task), digest_task(task, 0), digest_task(task)

    paths = list(sys.path)
    before = digest()
    for name, changed in (("mine.yaml", 2), ("judging.py", 3), ("lib/grading.py", 3), ("docs.jsonl", 1)):
        text = files[name].replace("3 + 4", "3 + 5").replace("{{problem}}", "Q: {{problem}}").replace("0.0", "1.0")
        (tmp_path / name).write_text(text + ("# changed" if name == "judging.py" else ""))
        assert [one != other for one, other in zip(before, digest(), strict=True)] == [changed == 3, changed > 1, True], name
        (tmp_path / name).write_text(files[name])
        assert digest() == before
    sys.path[:] = paths
