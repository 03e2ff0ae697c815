"""Packages of an extra that a command needs, which are looked for before it starts its work."""

from importlib.util import find_spec

from lm_eval_takeover.errors import ArgumentError


def need_analysis_packages(command: str) -> None:
    """Raises ArgumentError where the extra `analysis` is not installed."""
    for name in ("polars", "sklearn", "matplotlib"):
        if find_spec(name) is None:
            raise ArgumentError(f"{command} needs the package {name}: pip install '.[analysis]' in a checkout")
