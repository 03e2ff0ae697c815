"""What a command may write over: what it wrote itself, and empty files."""

from pathlib import Path

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.fields import describe_file


def check_replaceable(option: str, path: Path, kind: str) -> None:
    """Raises ArgumentError where something else lies at `path` than a file of this kind, as `describe_file` calls it."""
    if path.exists() and (found := describe_file(path)) not in (kind, "an empty file"):
        raise ArgumentError(
            f"--{option} '{path}' is {found}, not {kind}; it is left as it is: give the name of a new file"
        )
