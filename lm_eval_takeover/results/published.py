"""The paper's tables, cell by cell; lost cells are null, and `~` marks those by secondary copies."""

import json
from pathlib import Path
from typing import Any


def read_tables() -> dict[str, Any]:
    """Tables by number, each with `title`, `columns` and `rows` of texts."""
    tables: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())["tables"]
    return tables
