"""Makes paths from names that someone else chose, and finds the package's data folders."""

import os
import re
import sys
from os.path import realpath
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
# Folders of data; in a checkout they are links to folders at its top.
TASK_CONFIGS = _PACKAGE / "task_configs"
CALIBRATIONS = _PACKAGE / "data" / "calibration"
_LONGEST = 200  # bytes of a component; file systems take 255, and suffixes follow


def use_utf8() -> None:
    """Start this process again with names of files in UTF-8, where the C locale makes them ASCII. Its children inherit that."""
    if sys.getfilesystemencoding() == "ascii":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def make_component(name: str) -> str:
    """A name as one component of a path: letters, digits and `._+@=-` stay, all else is a `-`. Never empty, hidden or `..`."""
    component = re.sub(r"[^\w.+@=-]", "-", name).encode()[:_LONGEST].decode(errors="ignore")
    return re.sub(r"^\.", "_", component) or "_"


def join_inside(root: Path, *components: str) -> Path:
    """A path below `root`. Raises ValueError where `..`, an absolute name or a link leads out of it."""
    path = root.joinpath(*components)
    if not Path(realpath(path)).is_relative_to(realpath(root)) or ".." in path.relative_to(root).parts:
        raise ValueError(f"'{path}' lies outside of '{root}'")
    return path
