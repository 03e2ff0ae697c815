"""The files, packages and variables that code reaches, and a digest of all of them. Code reaches:

    imports        wherever they stand in a file, found without running it; of an installed package the version, of a large one
                   that lies elsewhere (a checkout on PYTHONPATH) the bytes, and not what these import
    files          that a constant of the code names, or that it has opened for reading
    environment    the variables that it has asked for itself, but not in a copy of all

What it has opened and asked for is known in the process that ran it, from `watch` on. Why not all that lies beside a file:
results and run_dirs lie there, too, and each run would have another digest.
"""

import ast
import collections.abc
import contextlib
import functools
import importlib.util
import itertools
import os
import re
import string
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from os.path import expanduser, isdir, isfile, join, realpath
from pathlib import Path
from typing import Any

from lm_eval_takeover.storage.digests import digest_of, digest_path

PACKAGE = "lm_eval_takeover"
# Of these a run names the versions itself, in a line: they change how numbers are rounded.
_TOLD = {PACKAGE, "torch", "numpy", "transformers"}
# Where something is, or which process this is: never what a text says.
PLACES = {"HOME", "USER", "PATH", "PWD", "TMPDIR", "RANK", "LOCAL_RANK", "WORLD_SIZE"}
_HIDDEN = expanduser("~/.")  # folders of programs, not of projects
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE")
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/run/", "/usr/lib", "/usr/share/")
_LIBRARIES = tuple(realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_ENVIRONMENT = re.compile(r"/lib(64)?/python[\d.]*/(site|dist)-packages/")  # another than this one
_OURS = str(Path(__file__).parents[1]) + os.sep
_LIBRARY = 300  # modules of a package that counts as a whole
_TASKS = f"{os.sep}lm_eval{os.sep}tasks{os.sep}"  # task files of lm-eval count by their bytes, as anyone's
_WRITING = ("write", "to_", "save", "mkdir", "unlink")  # how functions that write begin
_MODES = {"w", "a", "x", "wb", "ab", "xb", "w+", "a+", "wt", "at"}
_ASKING = {module.__file__ for module in (os, os.path, collections.abc, string)}  # they ask for what their caller wants


@dataclass
class Seen:
    """What a file of code has done so far: files that it opened for reading and for writing, variables by line."""

    opened: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    asked: defaultdict[int, set[str]] = field(default_factory=lambda: defaultdict(set))


_seen = defaultdict[str, Seen](Seen)  # by file of code, in this process


def digest_code(roots: Iterable[str]) -> str:
    """32 hexadecimal digits of these files of code and of all that they reach, wherever they lie."""
    return digest_of(describe_code(roots))


def describe_code(roots: Iterable[str]) -> list[tuple[str, str]]:
    """`(name, digest, version or value)` of all that is reached; our own package is in it by its name alone."""
    found = set[tuple[str, str]]()
    for file, packages in _follow(roots):
        found.add((Path(file).name, digest_path(Path(file))))
        found |= {_identify(package) for package in packages}
        for names in (names & os.environ.keys() for names in _seen[file].asked.values()):
            if 2 * len(names) <= len(os.environ):  # a line that asks for more copies them
                found |= {(f"${name}", os.environ[name]) for name in names - PLACES}
    return sorted(found)


def _identify(package: str) -> tuple[str, str]:
    """An installed package with its version, a library in a folder with its digest."""
    if os.sep in package:
        return Path(package).name, _digest_library(package)
    return package, "" if package in _TOLD else find_version(package) or ""


@functools.cache
def _digest_library(folder: str) -> str:
    return digest_path(Path(folder))


def list_files(roots: Iterable[str]) -> list[str]:
    """The files of code and data that are reached, these among them."""
    return [file for file, _ in _follow(roots)]


def find_version(package: str) -> str | None:
    """Of what provides this import; None where that is no package of its own."""
    for name in _list_providers().get(package, [package]):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


_list_providers = functools.cache(metadata.packages_distributions)


@functools.lru_cache(maxsize=10_000)
def is_installed(file: str) -> bool:
    """Whether a file is Python's or an installed package's."""
    path = realpath(file)
    in_library = path.startswith(_LIBRARIES) or _ENVIRONMENT.search(path) is not None
    return (in_library and _TASKS not in path) or file.startswith("<")


def is_ours(file: str) -> bool:
    return file.startswith(_OURS)


@functools.cache
def watch() -> None:
    """From now on note which code opens which files, and asks for which variables."""

    def open_file(event: str, arguments: Any) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes)):
            return
        frame: Any = sys._getframe(1)
        imports = frame.f_code.co_filename.startswith("<frozen importlib")
        if (opener := _find_code(frame, is_installed)[0]) is None:
            return
        path = os.fsdecode(arguments[0])
        if imports and path.endswith(".pyc"):  # there from the second process on
            with contextlib.suppress(ValueError):
                path = importlib.util.source_from_cache(path)
        path = realpath(path)
        if (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            _seen[opener].written.add(path)
        elif (imports or not path.endswith((".py", ".pyc"))) and not is_elsewhere(path, os.path.dirname(opener)):
            _seen[opener].opened.add(path)

    def ask(self: Any, name: Any) -> Any:
        code, line = _find_code(sys._getframe(1), lambda file: file[0] == "<" or file in _ASKING)
        if code is not None:
            _seen[code].asked[line].add(os.fsdecode(name))
        return get(self, name)

    environment: Any = type(os.environ)
    get, environment.__getitem__ = environment.__getitem__, ask
    sys.addaudithook(open_file)


def _find_code(frame: Any, passes: Callable[[str], bool]) -> tuple[str | None, int]:
    """The user's code behind a frame, through what `passes`, and the line there; None where other code is."""
    while frame is not None and passes(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or is_installed(file := frame.f_code.co_filename) or is_ours(file):
        return None, 0
    return realpath(file), frame.f_lineno


def is_elsewhere(path: str, beside: str) -> bool:
    """Whether a file is the system's, a library's, ours, in a cache, or hidden in the user's folder and not beside the code."""
    caches = [realpath(folder) for folder in (f"{_HIDDEN}cache", *map(os.environ.get, _CACHES)) if folder]
    hidden = path.startswith(_HIDDEN) and not path.startswith(beside + os.sep)
    return hidden or is_installed(path) or path.startswith((*_SYSTEM, *caches, _OURS))


def _follow(roots: Iterable[str]) -> Iterator[tuple[str, set[str]]]:
    """Each file that is reached, with the installed packages that it names."""
    left, seen = [realpath(root) for root in roots], set[str]()
    while left:
        file = left.pop()
        if file in seen or not isfile(file):
            continue
        seen.add(file)
        files, packages = _resolve(file) if file.endswith(".py") else (set[str](), set[str]())
        left += files | (_seen[file].opened - _seen[file].written)
        yield file, packages


def _resolve(file: str) -> tuple[set[str], set[str]]:
    """What one file of code names itself: files, installed packages."""
    try:
        imports, texts = _parse(file, os.stat(file).st_mtime_ns)
    except (OSError, SyntaxError, ValueError, RecursionError):  # who runs it says so
        return set(), set()
    folders = [folder := os.path.dirname(file), os.path.dirname(folder), os.getcwd()]
    for text in texts:  # folders that are joined to names, or put on the path of imports
        folders += [path for start in folders[:20] if text.strip("./") and isdir(path := join(start, text))]
    named = {join(start, expanduser(text)) for text in texts for start in dict.fromkeys(folders)}
    files = {path for each in named if isfile(each) and not is_elsewhere(path := realpath(each), folder)}
    packages = set[str]()
    for name in imports:
        top = name.partition(".")[0]
        loaded = getattr(sys.modules.get(top), "__file__", None) or "<built in>"
        if (top in sys.stdlib_module_names and is_installed(loaded)) or top == "__main__":
            continue
        origins = [] if top == PACKAGE else list(_find_module(name, [*folders[:2], *folders[3:], *sys.path]))
        inside = {realpath(origin) for origin in origins if origin.endswith(".py") and not is_installed(origin)}
        libraries = {library for origin in inside if (library := _find_library(os.path.dirname(origin)))}
        if libraries:
            packages |= libraries
        elif inside:
            files |= inside
        elif top and (origins or top == PACKAGE):
            packages.add(top)
    return files, packages


@functools.lru_cache(maxsize=10_000)
def _find_library(folder: str) -> str | None:
    """The outermost package around a folder, if it has more modules than anybody writes for a task."""
    package = None
    while isfile(join(folder, "__init__.py")):
        package, folder = folder, os.path.dirname(folder)
    modules = Path(package).rglob("*.py") if package and not is_installed(package) else ()
    return package if len(list(itertools.islice(modules, _LIBRARY))) == _LIBRARY else None


@functools.lru_cache(maxsize=10_000)
def _parse(file: str, _: int) -> tuple[list[str], list[str]]:
    """The imports and the short texts of a file of code."""
    tree = ast.parse(Path(file).read_bytes())
    return list(_list_imports(tree)), list(dict.fromkeys(_list_texts(tree)))


def _name(node: ast.AST) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _list_texts(node: ast.AST) -> Iterator[str]:
    """The short texts of some code, but for those in calls that write."""
    if isinstance(node, ast.Call):
        given = {getattr(each, "value", None) for each in (*node.args, *(word.value for word in node.keywords))}
        if _name(node.func).startswith(_WRITING) or (_name(node.func) == "open" and not given.isdisjoint(_MODES)):
            return
    text = node.value if isinstance(node, ast.Constant) else None
    if isinstance(text, str) and 0 < len(text) < 200 and text.isprintable():
        yield text
    for child in ast.iter_child_nodes(node):
        yield from _list_texts(child)


def _list_imports(tree: ast.AST) -> Iterator[str]:
    """The modules that code may import, with a dot for each level of a relative import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from [start, *(f"{start}.{alias.name}" if node.module else start + alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and _name(node.func) in ("import_module", "__import__", "run_module"):
            yield from (arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _find_module(name: str, path: Sequence[str]) -> Iterator[str]:
    """The files of a module and of the packages around it, without running them; of a loaded one where it came from, too."""
    if level := len(name) - len(name.lstrip(".")):
        path, name = [join(path[0], *[".."] * (level - 1))], name.lstrip(".")
        yield from (init for each in path if isfile(init := join(each, "__init__.py")))
    elif (loaded := getattr(sys.modules.get(name), "__file__", None)) is not None:
        yield loaded
    for part in filter(None, name.split(".")):
        if (spec := PathFinder.find_spec(part, path)) is None:
            return
        if spec.origin:
            yield spec.origin
        path = list(spec.submodule_search_locations or [])
