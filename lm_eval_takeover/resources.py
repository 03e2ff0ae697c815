"""Where the package's data folders are: inside it when installed, beside it in a checkout (editable installs)."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def data_folder(name: str) -> Path:
    """`task_configs` or `calibration`, wherever this installation keeps it."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
