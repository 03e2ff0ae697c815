"""Tables of all commands on a terminal: at any width every number is whole, and one of the JSON."""

import json
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree

import polars as pl
import pytest
from helpers.printed_numbers import check_numbers
from helpers.results import takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands._output import WRITERS, Table, draw_svg, write_latex, write_markdown, write_terminal
from lm_eval_takeover.commands.compare.estimate import lay_out_hours, lay_out_tasks
from lm_eval_takeover.commands.compare.frontier import AREA_COLUMNS, Frontier
from lm_eval_takeover.commands.compare.tables import write_costs, write_frontier
from lm_eval_takeover.commands.compare.workload import TaskLoad
from lm_eval_takeover.commands.effects import tables as effects
from lm_eval_takeover.escaping import for_terminal
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.results.runs import MATHEMATICAL, TOTALS

WIDTHS = [40, 60, 80, 100, 160]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Five runs of six tasks, and of a task of one's own."""
    folder = tmp_path_factory.mktemp("runs")
    tasks = [task for task in MATHEMATICAL if not task.endswith("_100")]
    shifts = {"base": 0, "random": 1, "disagreement": 4, "guide": 5}
    for policy, shift in shifts.items():
        counts = {task: [(3 * i + shift * j) % 9 for i in range(17 + j)] for j, task in enumerate(tasks)}
        run = takeover(policy, parameters={"base": 460_000, "guide": 1_610_000})
        write_results(folder / policy, counts, run=run)
    write_results(folder / "own", {"my_own_puzzles_of_three": [0, 1, 2, 3, 3]}, run=takeover(seed=3), samples=3)
    main(["regress", str(folder / "base"), "--baseline", str(folder / "b.json"), "--update"])
    return folder


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "words",
    [
        ["leaderboard", "{runs}"],
        ["leaderboard", "{runs}", "--columns", "intervals", "maj8", "cost"],
        ["leaderboard", "{runs}", "--vs", "{runs}/base"],
        ["leaderboard", "--published"],
        ["regress", "{runs}/random", "--baseline", "{runs}/b.json", "--metric", "acc", "pass@8", "--allow", "policy", "rate",
         "score", "tau", "kappa", "window"],
        ["regress", "--baseline", "{runs}/b.json", "--plan", "--tasks", "takeover_amc23"],
    ],
    ids=["board", "all-columns", "versus", "published", "regress", "plan"],
)  # fmt: skip
def test_every_number_of_a_table_is_whole_and_of_the_json(runs, capsys, monkeypatch, words, width):
    monkeypatch.setenv("COLUMNS", str(width))
    words = [word.format(runs=runs) for word in words]
    capsys.readouterr()
    main([*words, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    main(words)
    printed = capsys.readouterr().out
    # A path of the machine has no place to be folded.
    assert max(len(line) for line in printed.splitlines() if "/" not in line.replace(" / ", "")) <= max(width, 40)
    check_numbers(printed, document, least=6)


_LEAST = [0.0117, 0.0523, 0.0411, None]
AREAS = [
    dict(zip(AREA_COLUMNS, values, strict=True))
    for values in (
        ["share", "average", "acc", "segment:length=sentence", 0.4312, 0.3711, 0.4987, 0.3921, 0.4703, "random", 0.3771, 0.3307,
         0.4235, 1.23e-09, *_LEAST],
        ["share", "average", "acc", "random", 0.0541, 0.0198, 0.0884, -0.0271, 0.1353, *[None] * 9],
        ["asked", "average", "acc", "segment:length=sentence", *[None] * 10, *_LEAST],
        ["asked", "average", "acc", "random", *[None] * 14],
    )
]  # fmt: skip


COSTS = [
    {"row": "thinking", "seconds": 86_400.4, "tokens": 12_345_678} | dict.fromkeys(TOTALS[1:]),
    {"row": "segment-length-sentence@0.05", "tokens": 9_876_543, "takeovers": 493_827, "changed": 391_204,
     "asked": 9_876_543, "base_passes": 10_123_456, "guide_passes": 1_234_567, "seconds": 7_201.0},
]  # fmt: skip
LOADS = [
    TaskLoad(task, 500, 8, 16_384, Sampling(0.6, 0.95)) for task in ("takeover_math500", "my_own_puzzles_of_three")
]
ROWS = [SimpleNamespace(label=label, name=label) for label in ("base", "segment-length-sentence@0.05")]
SPEEDS = {"base": 1000.0, ROWS[1].label: 632.1}
HOURS = [2 * 500 * 8 * 16_384 / speed / 3600 for speed in SPEEDS.values()]
WORK = [list(SPEEDS.values()), HOURS, [sum(HOURS)]]
SUMMARY = [
    {"task": task, "kind": kind, "population": 98_765, "positions": 1234, "effect": effect, "low": effect - 0.0411,
     "high": effect + 0.0398, "helpful": 0.43, "helpful_low": 0.38, "helpful_high": 0.49, "harmful": 0.06, "harmful_low": 0.02,
     "harmful_high": 0.11, "share_for_80": share}
    for task in ("my_own_puzzles_of_three", "all")
    for kind, effect, share in (("takeover", 0.4312, 0.27), ("control", -0.0107, None))
]  # fmt: skip
AUROC = [
    {"kind": kind, "score": score, "positions": 1234, "auroc": 0.8123, "low": 0.7012, "high": 0.9034}
    for kind in ("takeover", "control")
    for score in ("ce", "log_ratio", "place")
]


def _lay_out_work():
    return "\n".join(map(WRITERS["table"], (lay_out_tasks(LOADS), lay_out_hours(ROWS, LOADS, SPEEDS, {}))))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("show", "values"),
    [
        (lambda: write_costs(COSTS, [], "table"), COSTS),
        (_lay_out_work, [WORK, [[load.problems, load.samples, load.requests, load.most_tokens] for load in LOADS]]),
        (lambda: write_frontier(Frontier([], AREAS), "share", "table"), [AREAS, 0.0001, 50, 90, 95]),  # and headings
        (lambda: effects._show_summary(pl.DataFrame(SUMMARY), "base"), SUMMARY),
        (lambda: effects._show_auroc(pl.DataFrame(AUROC)), AUROC),
    ],
    ids=["costs", "dry-run", "areas", "effects", "effects-auroc"],
)  # fmt: skip
def test_every_number_of_compare_and_effects_is_whole(monkeypatch, show, values, width):
    monkeypatch.setenv("COLUMNS", str(width))
    printed = show()
    assert max(len(line) for line in printed.splitlines() if not line.startswith(("Areas by", "Least"))) <= width
    check_numbers(printed, values, least=7)


CELLS = Table(
    ["Model", "Rate", "A task", "Another task"],
    [["Qwen3-0.6B-Base + Guided (rkl)", "5.0%", "27.6 / 67.0 (25.1–30.2, 60.0–72.4)", "1,234,567.8 / 100.0"]],
    ["One note that is longer than the narrowest terminal is folded between its words."],
)


@pytest.mark.parametrize("width", [8, 20, 30, *WIDTHS])
def test_the_same_numbers_stand_at_every_width(width):
    printed = write_terminal(CELLS, width)
    for number in ("5.0%", "27.6", "67.0", "25.1–30.2", "60.0–72.4", "1,234,567.8", "100.0"):
        assert number in printed
    assert ("0.6B" in printed and width < 20) or max(map(len, printed.splitlines())) <= max(width, 30)


def test_a_table_without_rows_is_its_notes():
    assert write_terminal(Table(["A", "B"], [], ["Nothing is there."]), 80) == "Nothing is there.\n"


def test_names_stand_to_the_left_in_every_format():
    table = Table(["Task", "Metric", "Now"], [["a", "acc", "1.0"], ["b|c", "acc", "2"]], names=2)
    assert write_markdown(table).splitlines()[1:] == ["| --- | --- | --: |", "| a | acc | 1.0 |", r"| b\|c | acc | 2 |"]
    assert r"\begin{tabular}{llr}" in write_latex(table)
    columns = [line.index("acc") for line in write_terminal(table, 80).splitlines()[2:]]
    assert all(one == other for one, other in pairwise(columns))


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\ufffe", "\uffff b", "\ud800 lone", r"$\frac{$", "a$b$c"])
def test_a_figure_with_any_name_is_well_formed_and_shows_it(name):
    def draw(figure):
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], label=name)
        axes.set_title(name)
        axes.set_yticks([0, 1], [name, "other"])
        axes.legend()

    figure = ElementTree.fromstring(draw_svg(draw, (4, 4)))
    shown = [text for each in figure.iter("{http://www.w3.org/2000/svg}text") if (text := "".join(each.itertext()))]
    assert shown.count(for_terminal(name)) == 3
