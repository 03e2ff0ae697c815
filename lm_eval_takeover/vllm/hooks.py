"""Looks up names in vLLM's source without importing it, so other versions can be checked before they run.

A hook is `(module, path, names)`, the names in one text. The path leads to

- a function, whose parameters must be these, in this order; before `...` in any order, and there may be others,
- a class, which must have attributes and methods of these names, its own or inherited,
- nowhere, where it is empty: the module's code must mention the names, or be a package of modules of these names.
"""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

Hook = tuple[str, str, str]
OTHERS = "..."

_Found = tuple[str, ast.AST]  # the module where something stands, and what it is
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def find_faults(root: Path, hooks: tuple[Hook, ...]) -> tuple[str, ...]:
    """One text for each hook that the packages under `root` lack or have in another form."""
    source = _SourceTree(root)
    return tuple(fault for module, path, names in hooks for fault in _compare(source, module, path, names.split()))


def _compare(source: "_SourceTree", module: str, path: str, names: Sequence[str]) -> Iterator[str]:
    where, definition = f"{module}.{path}".rstrip("."), source.look_up(module, path)
    if definition is None:
        yield f"{where} is missing"
        return
    present, expected = source.list_names(*definition), [name for name in names if name != OTHERS]
    is_function = isinstance(definition[1], _FUNCTIONS)
    if is_function and OTHERS not in names:
        if present != expected:
            yield f"{where} takes ({', '.join(present)}), not ({', '.join(expected)})"
        return
    kind = "parameter" if is_function else "attribute" if path else "mention of"
    yield from (f"{where} has no {kind} '{name}'" for name in expected if name not in present)


class _SourceTree:
    """Modules under a folder, each parsed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._trees: dict[str, ast.Module | None] = {}
        self._members: dict[ast.ClassDef, dict[str, _Found]] = {}

    def look_up(self, module: str, path: str) -> _Found | None:
        """The definition at this path, through imports and base classes."""
        tree = self._parse(module)
        if tree is None or not path:
            return None if tree is None else (module, tree)
        first, *rest = path.split(".")
        definition = self._find_name(module, first)
        for name in rest:
            if definition is None or not isinstance(definition[1], ast.ClassDef):
                return None
            definition = self._list_members(definition[0], definition[1]).get(name)
        return definition

    def list_names(self, module: str, node: ast.AST) -> list[str]:
        """Parameters of a function, members of a class, or all words of a module's code."""
        if isinstance(node, _FUNCTIONS):
            arguments = node.args
            names = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
            return [name for name in names if name not in ("self", "cls")]
        if isinstance(node, ast.ClassDef):
            return list(self._list_members(module, node))
        folder = self._root.joinpath(*module.split("."))
        modules = [file.stem for file in folder.iterdir()] if folder.is_dir() else []
        fields = ("id", "attr", "name", "arg", "value")
        words = (getattr(part, field, None) for part in ast.walk(node) for field in fields)
        return modules + [word for word in words if isinstance(word, str)]

    def _parse(self, module: str) -> ast.Module | None:
        if module not in self._trees:
            base = self._root.joinpath(*module.split("."))
            files = (base.with_name(f"{base.name}.py"), base / "__init__.py")
            text = next((file.read_text("utf-8") for file in files if file.is_file()), None)
            self._trees[module] = None if text is None else ast.parse(text)
        return self._trees[module]

    def _find_name(self, module: str, name: str) -> _Found | None:
        """A class or a function of a module, or of the module that it is imported from."""
        tree = self._parse(module)
        for node in _list_statements(tree.body) if tree is not None else ():
            if isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name == name:
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if name == (alias.asname or alias.name):
                        return self._find_name(self._name_origin(module, node), alias.name)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and ast.unparse(node.targets[0]) == name:
                return self._find_name(module, node.value.id)  # another name of the same
        return None

    def _name_origin(self, module: str, node: ast.ImportFrom) -> str:
        """The module that is imported from."""
        is_package = self._root.joinpath(*module.split("."), "__init__.py").is_file()
        return resolve_name("." * node.level + (node.module or ""), module if is_package else module.rpartition(".")[0])

    def _list_members(self, module: str, node: ast.ClassDef) -> dict[str, _Found]:
        """Attributes and methods of a class by name: of its bases, set by its methods, or named in its body."""
        if node in self._members:
            return self._members[node]
        members = self._members[node] = {}
        for base in reversed(node.bases):
            name = base.value if isinstance(base, ast.Subscript) else base
            definition = self._find_name(module, name.id) if isinstance(name, ast.Name) else None
            if definition is not None and isinstance(definition[1], ast.ClassDef):
                members |= self._list_members(definition[0], definition[1])
        for sub in ast.walk(node):
            if isinstance(sub, ast.Attribute) and isinstance(sub.ctx, ast.Store) and ast.unparse(sub.value) == "self":
                members.setdefault(sub.attr, (module, sub))
        for statement in node.body:
            targets = getattr(statement, "targets", [getattr(statement, "target", None)])
            named = [target.id for target in targets if isinstance(target, ast.Name)]
            names = named or [getattr(statement, "name", "")]
            members |= dict.fromkeys(names, (module, statement))
        return members


def _list_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also within `if` and `try`, where imports for type checkers stand."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            yield from _list_statements([*node.body, *node.orelse])
