"""The paper's tables: every cell of the data file stands in the source, but for marked ones, and nothing else does."""

import re

import pytest
from helpers.pairs import SHARED

from lm_eval_takeover.results.published import read_published_rows, read_tables


def test_rows_are_the_lines_with_figures_of_the_source_cell_by_cell():
    sources = sorted((SHARED / "seeds").glob("003_*.txt")) if (SHARED / "seeds").is_dir() else []
    if not sources:
        pytest.skip("needs the text of the paper in ../shared/seeds, which is not here")
    lines = [line.strip()[1:-1].split("|") for line in sources[0].read_text().splitlines() if line.startswith("|")]
    printed = [tuple(cell.strip() for cell in line if cell.strip()) for line in lines]
    known = set()
    for number, table in read_tables().items():
        for row in table["rows"]:
            cells = tuple(re.sub(r"\(~.*\)", "()", cell) for cell in row if cell is not None and cell[:1] != "~")
            spanned = [cells[1:]] if number in ("2", "8") else []  # a cell of the first column that spans two rows
            assert any(line in (cells, *spanned) for line in printed), (number, row)
            known |= {cells, *spanned}
    figures = [line for line in printed if re.search(r"\d\.\d|\d%|^\d+$", " ".join(line[1:]))]
    assert [line for line in figures if line not in known and "Top-1% (%)" not in line] == []


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
