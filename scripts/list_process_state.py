"""Lists what the package keeps for a whole process: context variables, and containers of a module that its functions change.

    python scripts/list_process_state.py [FOLDER]

Two models of one process share it, so there should be little, each with a reason.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lm_eval_takeover"
CHANGING = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}
CONTAINERS = {"dict", "list", "set", "defaultdict", "deque", "WeakValueDictionary", "Registry"}


def name_of(node: ast.AST | None) -> str:
    """The last name of `a`, `a.b` or `a[…]`; empty for other code."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return getattr(node, "attr", getattr(node, "id", ""))


def list_names(node: ast.AST) -> Iterator[str]:
    """All names of `a[…].b`, outermost last."""
    while isinstance(node, ast.Subscript | ast.Attribute):
        yield name_of(node)
        node = node.value
    yield name_of(node)


def list_bound(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """`(name, what makes its value)` of each name that a module binds to a container, a context variable or None."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        value = statement.value
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = value.elts if isinstance(value, ast.Tuple) and len(names) > 1 else [value] * len(names)
            for name, own in zip(names, values, strict=True):
                kind = name_of(own.func) if isinstance(own, ast.Call) else type(own).__name__.lower()
                if kind in CONTAINERS | {"ContextVar"} or (isinstance(own, ast.Constant) and own.value is None):
                    yield name_of(name), kind


def list_changed(tree: ast.Module) -> Iterator[str]:
    """Names that functions bind by `global`, or whose containers they change."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    for node in {inner for function in functions for inner in ast.walk(function)}:
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Attribute) and node.attr in CHANGING:
            yield from list_names(node.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield from list_names(node)


def list_state(package: Path) -> tuple[list[str], list[str]]:
    """Context variables, and containers of modules that functions change, each as `file:name`."""
    trees = {path.relative_to(package): ast.parse(path.read_text()) for path in sorted(package.rglob("*.py"))}
    changed = {name for tree in trees.values() for name in list_changed(tree)}
    bound = [(f"{path}:{name}", name, kind) for path, tree in trees.items() for name, kind in list_bound(tree)]
    variables = [place for place, _, kind in bound if kind == "ContextVar"]
    return variables, [place for place, name, kind in bound if name in changed and kind != "ContextVar"]


if __name__ == "__main__":
    variables, containers = list_state(Path(sys.argv[1]) if sys.argv[1:] else PACKAGE)
    print(f"{len(variables)} context variables\n  " + "\n  ".join(variables))
    print(f"{len(containers)} containers that functions change\n  " + "\n  ".join(containers))
    print(f"{len(variables) + len(containers)} in all")
