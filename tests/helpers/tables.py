"""Tables of judged answers, problems and keys in `data/`, one JSON object a line, in the order of the files."""

import json
from pathlib import Path
from typing import Any


def read_table(name: str) -> list[tuple[Any, ...]]:
    """The rows of `data/NAME.jsonl`, each as its values in the order in which they are written."""
    with open(Path(__file__).parent / "data" / f"{name}.jsonl", encoding="utf-8") as lines:
        return [tuple(json.loads(line).values()) for line in lines]
