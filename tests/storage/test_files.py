"""Files are whole or old, what strangers wrote is checked by its types, and code is digested with all that it reaches."""

import fcntl
import importlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import TASK

from lm_eval_takeover.storage import code_reach
from lm_eval_takeover.storage.digests import digest_path
from lm_eval_takeover.storage.files import Lock, join_inside, make_component, open_input, read_bounded, write_text, write_whole
from lm_eval_takeover.storage.schema import Positive, Share, check


@pytest.fixture
def umask():
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def test_a_file_and_its_folder_are_made_as_the_umask_says(tmp_path, umask):
    path = tmp_path / "new" / "file.txt"
    write_text(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    umask(0o077)
    write_text(path, "other")
    assert path.stat().st_mode & 0o777 == 0o644  # the mode that it had
    assert path.read_text() == "other"
    write_text(tmp_path / "own" / "private", "x")
    assert [one.stat().st_mode & 0o777 for one in (tmp_path / "own", tmp_path / "own" / "private")] == [0o700, 0o600]


def test_a_link_is_replaced_and_what_it_names_stays(tmp_path):
    (tmp_path / "theirs").write_text("content")
    (tmp_path / "file.txt").symlink_to(tmp_path / "theirs")
    write_text(tmp_path / "file.txt", "new")
    assert (tmp_path / "theirs").read_text() == "content" and not (tmp_path / "file.txt").is_symlink()


@pytest.mark.parametrize("stop", [OSError("no space left"), KeyboardInterrupt()], ids=["failed", "interrupted"])
def test_a_writer_that_stops_leaves_the_old_file_and_nothing_else(tmp_path, stop):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def write(stream):
        stream.write(b"ne")
        raise stop

    with pytest.raises(type(stop)):
        write_whole(path, write)
    assert [one.name for one in tmp_path.iterdir()] == ["file.txt"]
    assert path.read_text() == "old"


def test_a_link_to_a_regular_file_is_read_and_one_that_is_too_large_is_not(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bounded(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="it has more than 0 MB"):
        read_bounded(tmp_path / "link", 4)


@pytest.mark.parametrize("target", ["/dev/zero", "pipe", "."])
def test_pipes_devices_and_folders_are_refused_at_once(tmp_path, target):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(OSError, match="it is a folder, a pipe or a device"):
        open_input(tmp_path / "link")


@given(st.text() | st.text(alphabet="./\\~\0\n:-a", max_size=20))
def test_a_component_is_one_component(tmp_path_factory, name):
    component = make_component(name)
    root = tmp_path_factory.getbasetemp()
    assert join_inside(root, component).parent == root
    assert make_component(model := "Qwen3-0.6B-Base+Qwen3-8B-disagreement") == model
    assert component not in ("", ".", "..") and not component.startswith(".") and len(component.encode()) <= 200


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "link/x", "a/../../x"])
def test_what_leads_out_is_refused(tmp_path, name):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="lies outside"):
        join_inside(tmp_path / "root", name)
    (tmp_path / "loop").symlink_to("loop")
    assert join_inside(tmp_path, "loop") == tmp_path / "loop"  # who opens it is told what it is


def test_a_planted_link_keeps_its_content(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.write_text("content")
    (tmp_path / "symbolic").symlink_to(theirs)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    (tmp_path / "hard").hardlink_to(theirs)
    os.mkfifo(tmp_path / "pipe")
    for name in ("symbolic", "dangling", "pipe"):
        with pytest.raises(OSError, match="remove it"):
            Lock(tmp_path / name)
    Lock(tmp_path / "hard").release()
    assert theirs.read_text() == "content" and not (tmp_path / "new").exists()


@dataclass(frozen=True)
class Model:
    id: str
    revision: str | None = None


@dataclass(frozen=True)
class Pair:
    base: Model
    direction: Literal["forward", "reverse"]
    rates: tuple[Share, ...] = ()
    counts: dict[str, Positive] = field(default_factory=dict)


class Facts(TypedDict):
    seed: int | None
    tau: NotRequired[float]


def test_dataclasses_are_built_and_a_typed_dict_keeps_what_it_does_not_know():
    value = {"base": {"id": "a"}, "direction": "reverse", "rates": [0, 0.5], "counts": {"x": 3}}
    assert check(value, Pair) == Pair(Model("a"), "reverse", (0.0, 0.5), {"x": 3})
    assert check({"seed": None, "other": [1]}, Facts) == {"seed": None, "other": [1]}


@pytest.mark.parametrize(
    ("value", "hint", "text"),
    [
        ([], Pair, r"field 'x' is \[\], expected an object"),
        ({"direction": "forward"}, Pair, "field 'x.base' is missing, expected an object"),
        ({"base": {"id": 3}, "direction": "forward"}, Pair, "field 'x.base.id' is 3, expected a text"),
        ({"base": {"id": ""}, "direction": "up"}, Pair, "'x.direction' is \"up\", expected \"forward\" or \"reverse\""),
        ({"id": "a", "revison": "b"}, Model, "field 'x.revison' is not known; known: id, revision"),
        ({"id": "a", "revision": 1}, Model, "field 'x.revision' is 1, expected a text"),
        ([0, 1.5], list[Share], r"field 'x\[1\]' is 1.5, expected a number from 0 to 1"),
        ([True], list[Share], r"field 'x\[0\]' is true, expected a number from 0 to 1"),
        ({"a": 0}, dict[str, Positive], "field 'x.a' is 0, expected a whole number of at least 1"),
        ({"a\n\u202e": 0}, dict[str, str], r"field 'x.a\\n\\u202e' is 0"),
        (float("nan"), float, "field 'x' is NaN, expected a number"),
        (10**400, float, r"field 'x' is 1000000000000000000000000000000000000\.\.\., expected a number"),
        (2**64, int, "expected a whole number"),
        (1.0, int, "expected a whole number"),
        ("a", int | list[int] | None, "field 'x' is \"a\", expected a whole number or a list or null"),
        (["a"], tuple[str, int], "field 'x' has 1 items, expected 2"),
        (["a", "b"], tuple[str, int], r"field 'x\[1\]' is \"b\", expected a whole number"),
        ({"tau": 1}, Facts, "field 'x.seed' is missing, expected a whole number or null"),
        ({"seed": 1, "tau": "1"}, Facts, "field 'x.tau' is \"1\", expected a number"),
    ],
)  # fmt: skip
def test_an_error_names_the_field_its_value_and_what_was_expected(value: Any, hint: Any, text: str):
    with pytest.raises(ValueError, match=text):
        check(value, hint, "x")


MAIN = """\
import json, sys
from pathlib import Path
import yaml
import aside
from lm_eval_takeover import register_score

HERE = Path(__file__).parent
TABLE = json.loads((HERE / "data" / "table.json").read_text())
COMPUTED = Path(__file__).with_suffix(".cfg").read_text()
HIDDEN = (HERE / f".{'hidden'}" / ".words").read_text()
sys.path.insert(0, str(HERE / "site-packages"))
import vendored


def judge(text):
    import late
    from package.inner import deep

    with open("log.txt", "a") as log:
        log.write(text)
    (HERE / "written.txt").write_text(text)
    return (HERE / "late.txt").read_text()
"""
WORLD = {
    "main.py": MAIN, "aside.py": "from other import x\n", "other.py": "x = 1\n", "late.py": "import package\n",
    "package/__init__.py": "from . import one\n", "package/one.py": "from .two import y\n", "package/two.py": "y = 1\n",
    "package/inner/__init__.py": "", "package/inner/deep.py": "from ..three import z\n", "package/three.py": "z = 1\n",
    "data/table.json": "[1]", ".hidden/.words": "c", "site-packages/vendored.py": "", "main.cfg": "a", "late.txt": "b",
}  # fmt: skip
BESIDE = {"log.txt": "", "written.txt": "", "unused.py": "", "run/journal.sqlite": "", "data/other.json": ""}


@pytest.fixture
def world(tmp_path, monkeypatch):
    for name, text in (WORLD | BESIDE).items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code_reach.watch()
    importlib.import_module("main")
    return tmp_path


def test_a_digest_changes_with_all_that_is_reached_and_with_nothing_else(world, monkeypatch):
    def digest():
        return code_reach.digest_code([str(world / "main.py")])

    before = digest()
    for name in BESIDE:
        (world / name).write_text("changed")
        assert digest() == before, name
    for name, text in WORLD.items():
        (world / name).write_text(text + "\n# changed")
        assert digest() != before, name
        (world / name).write_text(text)
        assert digest() == before, name
    monkeypatch.setattr(code_reach, "find_version", lambda name: "0" if name == "yaml" else "1")
    assert digest() != before
    assert ("lm_eval_takeover", "") in code_reach.describe_code([str(world / "main.py")])  # by its schema, not by its bytes


def test_what_code_opens_by_a_name_that_it_makes_counts_once_it_is_open(world):
    (world / "extra.txt").write_text("x")
    before = code_reach.digest_code([str(world / "main.py")])
    exec(compile("open(chr(101) + 'xtra.txt').close()", str(world / "main.py"), "exec"))
    assert str(world / "extra.txt") in code_reach.list_files([str(world / "main.py")])
    assert code_reach.digest_code([str(world / "main.py")]) != before


ASKING = {
    "under another name": "from os import environ as E\nE.get('ASKED')\n",
    "by a name that it makes": "import os\n'ASKED' in os.environ\nos.environ.get(f\"{'ASK'}ED\")\n",
    "in bytes": "import os\nos.environb.get(b'ASKED')\n",
    "expanded": "import os\nos.path.expandvars('$ASKED')\n",
    "in a template": "import os, string\nstring.Template('$ASKED').safe_substitute(os.environ)\n",
    "in a module that it makes the name of": "import importlib\nimportlib.import_module('chi' + 'ld')\n",
    "of all that begin so": "import os\n[os.environ[name] for name in os.environ if name.startswith('ASK')]\n",
}
NOT_ASKING = {
    "in a string": "import os\n'ASKED'\nos.environ.get('OTHER')\n",
    "in a copy": "import os\ndict(os.environ), os.environ.copy(), {**os.environ}, os.environ | {}\nos.environ.get('OTHER')\n",
    "by a library": "import tempfile\ntempfile.gettempdir()\n",
}


@pytest.mark.parametrize("code", ASKING | NOT_ASKING)
def test_a_variable_counts_if_code_asks_for_it(tmp_path, monkeypatch, code):
    files = {"asking.py": (ASKING | NOT_ASKING)[code], "child.py": "import os\nos.getenv('ASKED')\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    name = "TEMP" if code == "by a library" else "ASKED"
    monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code_reach.watch()
    importlib.import_module("asking")
    for module in ("asking", "child"):
        sys.modules.pop(module, None)
    before = code_reach.digest_code([str(tmp_path / "asking.py")])
    monkeypatch.setenv(name, "another")
    assert (code_reach.digest_code([str(tmp_path / "asking.py")]) != before) == (code in ASKING)
    monkeypatch.setenv(name, str(tmp_path))
    assert code_reach.digest_code([str(tmp_path / "asking.py")]) == before


def test_what_a_killed_process_left_of_a_file_goes_when_the_file_is_written_again(tmp_path):
    (left := tmp_path / f".a[1].json.{'0' * 12}").write_text("{")
    (others := tmp_path / f".b.json.{'0' * 12}").write_text("{")
    held = tmp_path / f".a[1].json.{'1' * 12}"
    lock = Lock(held)  # another process is writing it
    write_text(tmp_path / "a[1].json", "{}")
    assert not left.exists() and others.exists() and held.exists()
    lock.release()
    write_text(tmp_path / "a[1].json", "{}")
    assert {path.name for path in tmp_path.iterdir()} == {"a[1].json", others.name}


def test_a_file_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    removed, lock = [], fcntl.flock

    def remove_first(handle, operation):
        if not removed:
            removed.append(next(tmp_path.glob(".a.json.*")))
            removed[0].unlink()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    write_text(tmp_path / "a.json", "{}")
    assert removed and [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_library_outside_of_site_packages_is_one_entry_by_its_bytes(tmp_path, monkeypatch):
    (library := tmp_path / "checkout" / "large_library").mkdir(parents=True)
    for number in range(300):
        (library / f"module_{number}.py").write_text(f"import module_{number + 1}\n")
    (library / "__init__.py").write_text("from large_library import module_7\n")
    (task := tmp_path / "task.py").write_text("from large_library.module_1 import x\n")
    monkeypatch.syspath_prepend(library.parent)
    before = code_reach.describe_code([str(task)])
    assert [name for name, _ in before] == ["large_library", "task.py"]
    (library / "module_299.py").write_text("changed = True\n")
    code_reach._digest_library.cache_clear()  # which another process computes anew
    assert code_reach.describe_code([str(task)])[0][1] != before[0][1]


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


GRADERS = {
    "a factory of another file": "from making import make\njudge = make(1.0)\n",
    "a wrapped one": "from functools import partial\nfrom making import grade\njudge = partial(grade, value=1.0)\n",
    "a bound method": "from making import Judge\njudge = Judge().judge\n",
    "vectorized": "import numpy as np\nfrom making import grade\njudge = np.vectorize(grade)\n",
}
MAKING = """\
def grade(doc, results, value=0.0):
    return {'acc': value}


def make(value):
    return lambda doc, results: {'acc': value}


class Judge:
    def judge(self, doc, results):
        return {'acc': 0.0}
"""


@pytest.mark.parametrize("judging", GRADERS.values(), ids=GRADERS)
def test_tasks_count_by_their_file_and_code_whatever_made_its_function(tmp_path, monkeypatch, judging):
    from lm_eval_takeover.runs.identity import digest_task, digest_task_code
    from lm_eval_takeover.tasks.sampled import load_named_tasks

    files = {
        "mine.yaml": TASK.format(task="mine", judge="judging.judge", data=tmp_path / "docs.jsonl"),
        "judging.py": judging, "lib/making.py": MAKING, "docs.jsonl": json.dumps({"problem": "3 + 4", "answer": "7"}) + "\n",
    }  # fmt: skip
    (tmp_path / "lib").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "lib")

    def digest():
        sys.modules.pop("making", None)
        (task,) = load_named_tasks(["mine"], tmp_path).values()
        return digest_task_code(task), digest_task(task)

    before = digest()
    for name, changed in (("mine.yaml", 2), ("judging.py", 3), ("lib/making.py", 3), ("docs.jsonl", 1)):
        text = files[name].replace("3 + 4", "3 + 5").replace("{{problem}}", "Q: {{problem}}")
        (tmp_path / name).write_text(text + "# changed\n" * (changed == 3))
        assert [one != other for one, other in zip(before, digest(), strict=True)] == [changed == 3, changed > 1], name
        (tmp_path / name).write_text(files[name])
        assert digest() == before, name
