"""Scores and policies by name: ours, those of installed packages, and those of a user's own file.

    @register_score("margin", needs_donor=False)
    @register_policy("every")

register a function on logits and a class, as in lm-eval's registry. Packages name theirs under the entry-point groups
`lm_eval_takeover.scores` and `lm_eval_takeover.policies`; they are loaded when a name is asked for. `lab/methods.py` is found
in the same way, so the core does not import it. `load_plugins` runs the files and modules of the model argument `plugins`.
Loading anything twice changes nothing. This module does not import torch.
"""

import contextlib
import functools
import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lm_eval_takeover.arguments import split_plugins
from lm_eval_takeover.errors import ArgumentError, PluginError, is_out_of_memory, nearest
from lm_eval_takeover.storage import code_reach
from lm_eval_takeover.storage.code_reach import PACKAGE as PACKAGE
from lm_eval_takeover.storage.digests import digest_of, digest_path

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from torch import Tensor

    from lm_eval_takeover.method.reading import PairReading

    Asked = Tensor | None
logger = logging.getLogger(__name__)

_PLUGIN = "takeover_plugin"  # how the names of modules of `plugins` begin


@dataclass(frozen=True, slots=True)
class Source:
    """The code that registered something: a name for people; where it is not ours, its key in this process and its files."""

    name: str
    key: str | None = None
    files: tuple[str, ...] = ()

    @classmethod
    def of(cls, target: Any) -> "Source":
        """Of a function or class: its file, or every Python file of the package that it belongs to."""
        module = target.__module__
        if _is_ours(module):
            return cls(PACKAGE)
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None:  # typed into an interpreter
            with contextlib.suppress(OSError):
                return cls(module, digest_of(inspect.getsource(target)))
            return cls(module, digest_of(target.__qualname__))
        if "." not in module:
            return cls(Path(file).name, module, (file,))
        package = Path(importlib.import_module(module.partition(".")[0]).__path__[0])
        return cls(str(Path(file).relative_to(package.parent)), module, tuple(sorted(map(str, package.rglob("*.py")))))

    @property
    def digest(self) -> str | None:
        """Of these files and of all that they reach, as they were at the first question; None for ours."""
        return self.key if self.key is None or not self.files else _digest_once(self.key, self.files)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


@functools.cache
def _digest_once(_: str, files: tuple[str, ...]) -> str:
    return code_reach.digest_code(files)


@dataclass(frozen=True, slots=True)
class Score:
    """A score `s_t` by name: a pure function from raw logits `[..., vocab]` to nats, or whatever unit it has, `[...]`.

    Its function takes one `PairReading`, as parameter `reading`, whose numbers all scores of a position share. Or it takes the
    host's logits, with `needs_donor` the donor's behind them, with `needs_token` the ids `[...]` of the tokens that the host
    draws there. A parameter `top_p` reads the model argument `score_top_p`.
    """

    name: str
    function: "Callable[..., Tensor]"
    needs_donor: bool
    source: Source
    needs_token: bool = False
    signed: bool = False  # values may be negative, so there is no window test, whose bound is a multiple of a mean
    binary: bool = False  # they are 0 or 1, so no threshold lies between: the argument `chance` sets how much the donor writes

    @property
    def parameters(self) -> tuple[str, ...]:
        own = self.function.__code__
        return own.co_varnames[: own.co_argcount]

    @property
    def reads_top_p(self) -> bool:
        return "top_p" in self.parameters

    def __call__(
        self, host_logits: "Tensor", donor_logits: "Asked" = None, tokens: "Asked" = None, *, top_p: float = 1.0
    ) -> "Tensor":
        """`s_t` `[...]` of logits `[..., vocab]` and host tokens `[...]`. Raises PluginError where a plug-in fails."""
        from lm_eval_takeover.method.reading import PairReading

        return self.of(PairReading(host_logits, donor_logits, tokens), top_p=top_p)

    def of(self, reading: "PairReading", *, top_p: float = 1.0) -> "Tensor":
        """`s_t` `[...]` of a reading that other scores may share. Raises PluginError where a plug-in fails."""
        arguments: list[Any] = [reading]
        if "reading" not in self.parameters:
            models = (reading.host_logits, reading.donor_logits)[: 1 + self.needs_donor]
            arguments = [*(logits.float() for logits in models if logits is not None), *[reading.tokens] * self.needs_token]
        options = {"top_p": top_p} if self.reads_top_p else {}
        from lm_eval_takeover.method.sampling import flush_denormals

        with flush_denormals():
            if self.source.digest is None:  # taken before the first call, so that it has the same in it in each process
                return self.function(*arguments, **options)
            values: Tensor = call_plugin(self.where, self.function, *arguments, **options)
        check_shape(self.where, values, reading.host_logits.shape[:-1])
        return values.float()

    @property
    def where(self) -> str:
        return f"score '{self.name}' ({self.source.name}: {self.function.__name__})"


def call_plugin(where: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of a plug-in's function. Turns its errors into PluginError, but not out-of-memory errors."""
    try:
        return function(*arguments, **options)
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, PluginError):
            raise
        *_, (_, last) = traceback.walk_tb(error.__traceback__)
        # Of a SyntaxError its own line, not that of the import; its text names the file once more.
        number, text = (error.lineno, error.msg) if isinstance(error, SyntaxError) else (last, str(error).strip())
        line = f", line {number}" if number is not None else ""
        reason = text.splitlines()[0] if text else "no message"
        raise PluginError(f"{where} raised {type(error).__name__}{line}: {reason}") from error


def check_shape(where: str, values: Any, shape: Any) -> None:
    """Refuse what is no tensor of this shape. Raises PluginError."""
    actual = getattr(values, "shape", None)
    if actual is None or tuple(actual) != tuple(shape):
        actual_kind = f"a tensor {list(actual)}" if actual is not None else type(values).__name__
        raise PluginError(f"{where} returned {actual_kind}, not one {list(shape)}")


class Registered(Protocol):
    """A score, or the class of a policy."""

    @property
    def source(self) -> Source: ...


Entry = TypeVar("Entry", bound=Registered)


@functools.cache
def _find_installed(group: str, path: tuple[str, ...]) -> "dict[str, EntryPoint]":
    """Entry points of the packages on this `sys.path`, which takes milliseconds to read."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


class Registry(Generic[Entry]):
    """Entries of one kind by name, loaded when they are asked for."""

    def __init__(self, kind: str, group: str) -> None:
        self.kind, self.group = kind, group
        self.entries: dict[str, Entry] = {}
        self.skipped: set[str] = set()  # names of installed packages that cannot be loaded

    def add(self, name: str, entry: Entry) -> None:
        """Register an entry; the same code may do so again. Raises PluginError if other code has the name."""
        source = entry.source
        if source.key is not None:  # a plug-in cannot take one of our names first
            self._load_ours()
            if (point := self.installed().get(name)) is not None and _is_ours(point.module):
                point.load()
        present = self.entries.get(name)
        if present is not None and present.source.name != source.name:
            raise PluginError(f"{self.kind} '{name}' of {source.name} is {present.source.name}'s already; choose another name")
        self.entries[name] = entry

    def get(self, name: str) -> Entry:
        """The entry of a name. Raises ArgumentError that lists all names and their sources, PluginError for a broken package."""
        if name in self.entries:
            return self.entries[name]
        self._load_ours()
        if name not in self.entries and (point := self.installed().get(name)) is not None:
            call_plugin(f"{self.kind} '{name}' (entry point {point.value})", point.load)
            if name not in self.entries:
                raise PluginError(f"entry point {point.value} registers no {self.kind} '{name}'")
        if name not in self.entries:
            raise ArgumentError(f"{self.kind}='{name}' is not known; {self.describe(name)}")
        return self.entries[name]

    def names(self) -> list[str]:
        """All names, ours first. Installed packages are loaded; a broken one is skipped with a warning."""
        self._load_ours()
        for name in [name for name in self.installed() if name not in self.skipped]:
            try:
                self.get(name)
            except PluginError as error:
                self.skipped.add(name)
                logger.warning("%s; it is skipped", error)
        return self._sorted()

    def _sorted(self) -> list[str]:
        """The loaded names in one order in all processes, whichever loads what first: ours, those of `lab`, plug-ins."""
        return sorted(self.entries, key=lambda name: (self.entries[name].source.key is not None, name in self.installed()))

    def __contains__(self, name: str) -> bool:
        """Whether there is such a name. Raises PluginError for that of a package that is broken."""
        try:
            self.get(name)
        except ArgumentError:
            return False
        return True

    def __iter__(self) -> Iterator[Entry]:
        return iter([self.get(name) for name in self.names()])

    def installed(self) -> "dict[str, EntryPoint]":
        """The names that installed packages bring, loaded or not."""
        return _find_installed(self.group, tuple(sys.path))

    def _load_ours(self) -> None:
        importlib.import_module(f"{PACKAGE}.method.policies")

    def describe(self, name: str) -> str:
        """The nearest name, and every name by its source."""
        places: dict[str, list[str]] = {}
        for entry in self._sorted():
            places.setdefault(self.entries[entry].source.name, []).append(entry)
        for entry, point in self.installed().items():
            if entry not in self.entries:
                places.setdefault(PACKAGE if _is_ours(point.module) else point.module, []).append(entry)
        close = nearest(name, [entry for listed in places.values() for entry in listed])
        registered = "; ".join(f"{', '.join(listed)} ({place})" for place, listed in places.items())
        return f"registered: {registered}" if close.startswith("known") else f"{close} registered: {registered}"


scores: Registry[Score] = Registry("score", f"{PACKAGE}.scores")

Function = TypeVar("Function", bound=Callable[..., Any])


def register_score(
    name: str, *, needs_donor: bool, needs_token: bool = False, signed: bool = False, binary: bool = False
) -> Callable[[Function], Function]:
    """Register `(reading)` or `(host_logits[, donor_logits][, tokens]) -> scores` `[...]`; options as in `Score`."""

    def register(function: Function) -> Function:
        scores.add(name, Score(name, function, needs_donor, Source.of(function), needs_token, signed, binary))
        return function

    return register


def load_plugins(names: str | None) -> None:
    """Run the files or modules of `plugins`, joined by `+`. Raises ArgumentError for a missing, PluginError for a broken one."""
    code_reach.watch()
    for name, file, is_module in _find_plugins(names):
        call_plugin(f"plugins='{name}'", *((importlib.import_module, name) if is_module else (_run_file, file)))


def digest_plugins(names: str | None) -> str:
    """Of these files or modules and of all that they reach. Raises ArgumentError for a missing one."""
    return code_reach.digest_code(str(file) for _, file, _ in _find_plugins(names))


def _find_plugins(names: str | None) -> Iterator[tuple[str, Path, bool]]:
    """Each name with its file, and whether it is a module. One may put the next on the path, so they are found in turn."""
    for name, file in split_plugins(names):
        if file is not None:
            yield name, file, False
            continue
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            spec = None
        if spec is None:
            raise ArgumentError(f"plugins='{name}' is neither a file nor a module that can be imported")
        yield name, Path(spec.origin or name), True


def _run_file(path: Path) -> None:
    """Run a file as a module. A second call runs it again, with its helpers, only if a file that it reaches has changed."""
    file = str(path.resolve())
    loaded = [module.__spec__ for name, module in sys.modules.items() if name.startswith(_PLUGIN)]
    states = [spec.loader_state for spec in loaded if spec is not None and spec.origin == file]
    before: dict[str, str] = (states and states[-1]) or {}  # the files that it reached when it ran last, with their digests
    if before and all(Path(reached).is_file() and digest_path(Path(reached)) == digest for reached, digest in before.items()):
        return
    for helper in [name for name, module in sys.modules.items() if getattr(module, "__file__", None) in before.keys() - {file}]:
        del sys.modules[helper]
    name = f"{_PLUGIN}_{path.stem}_{digest_of([file, code_reach.digest_code([file])])[:16]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    sys.modules.pop(name, None)  # of the same content, before another one: the last run is the last module
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        exec(compile(path.read_bytes(), file, "exec"), vars(module))  # Python's cache takes an edit within a second for none
    except BaseException:
        del sys.modules[name]
        raise
    spec.loader_state = {reached: digest_path(Path(reached)) for reached in code_reach.list_files([file])}
