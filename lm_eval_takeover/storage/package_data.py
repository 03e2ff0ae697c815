"""Finds the package's data folders: inside the package when installed, beside it in a checkout."""

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def data_folder(name: str) -> Path:
    """`task_configs` or `calibration`, wherever this installation keeps it."""
    inside = _PACKAGE / "data" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
