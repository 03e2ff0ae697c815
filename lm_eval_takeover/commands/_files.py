"""Files of a command that are checked before it begins: prompts that it reads, and what it may write over."""

from pathlib import Path

from lm_eval_takeover.errors import ArgumentError

_ENDINGS = (".jsonl", ".json", ".txt", ".csv", ".parquet")


def check_prompts(source: str | None) -> None:
    """Raises ArgumentError where this can only be the name of a file, and there is none."""
    is_file = source is not None and (source.endswith(_ENDINGS) or source.startswith(("/", ".", "~")))
    if is_file and not Path(str(source)).exists():
        raise ArgumentError(f"--prompts '{source}' does not exist; expected a JSONL file, or a data set of the hub")


def check_replaceable(option: str, path: Path, kind: str) -> None:
    """Raises ArgumentError where something else lies at `path` than a file of this kind, as `describe_file` calls it."""
    from lm_eval_takeover.results.fields import describe_file  # which loads NumPy

    if path.exists() and (found := describe_file(path)) not in (kind, "an empty file"):
        raise ArgumentError(
            f"--{option} '{path}' is {found}, not {kind}; it was not changed: give the name of a new file"
        )
