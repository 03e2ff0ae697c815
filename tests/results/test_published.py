"""The paper's tables: they are whole, their averages are those of their cells, and rows have their kinds."""

import pytest

from lm_eval_takeover.results.published import read_published_rows, read_tables


def test_all_fourteen_tables_are_there_and_rows_are_as_long_as_headings():
    tables = read_tables()
    assert list(tables) == [str(number) for number in range(1, 15)]
    assert all(len(row) == len(table["columns"]) for table in tables.values() for row in table["rows"])


def test_published_averages_are_those_of_their_cells_to_a_rounding():
    rows = [row for row in read_published_rows() if len(row.tasks) == 6]
    assert len(rows) == 19
    for row in rows:
        for metric in (0, 1):
            mean = sum(cell[metric] for cell in row.tasks.values()) / 6
            assert mean == pytest.approx(row.average[metric], abs=0.00101), (row.table, row.model)


def test_kinds_come_from_the_names():
    kinds = {
        "Qwen3-0.6B-Base": "base", "+ Guided ()": "guided", "+ Entropy-Guided ()": "guided", "+ Random": "random",
        "+ Early-only": "early", "Qwen3-0.6B (Thinking)": "thinking", "Qwen3-8B (Thinking)": "guide",
        "LLaMA-3.1-8B (Base)": "base", "DeepSeek-R1-Distill-Llama-8B (Guide)": "guide",
    }  # fmt: skip
    rows = read_published_rows()
    assert kinds.items() <= {row.model: row.kind for row in rows}.items()
    marked = [(row.table, row.nominal) for row in rows if row.kind == "guided" and row.nominal]
    assert marked == [("3", 0.04), ("3", 0.13), ("3", 0.16), ("10", 0.04), ("10", 0.13)]
