"""The frontier's files: a stranger's method in them, rows with a call for each task, and what other commands read of them."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.results import takeover, write_results
from helpers.stock import comparing_here

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare.running import describe_costs, write_costs
from lm_eval_takeover.errors import ResultsError
from lm_eval_takeover.lab.frontier import AREA_AXES
from lm_eval_takeover.lab.frontier.output import draw_frontier, write_frontier
from lm_eval_takeover.lab.frontier.study import describe_frontier
from lm_eval_takeover.results.files import read_run
from lm_eval_takeover.results.kept_rows import ComparedRow

METHOD = {"host": "base", "donor": "guide"}
STRANGER = """\
from dataclasses import dataclass

from lm_eval_takeover import BudgetParameter, Policy, register_policy


@register_policy("later")
@dataclass(frozen=True, kw_only=True)
class Later(Policy):
    \"\"\"The donor writes by chance, and more so the longer the text is.\"\"\"

    uses_chance = True
    budget_parameter = BudgetParameter("eagerness")
    eagerness: float = 0.1

    def takes_over(self, at):
        return at.chance < self.eagerness * (at.positions / 50).clamp(max=1)
"""


def read_lines(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def write_run(folder, correct, **written):
    return read_run(*write_results(folder, correct, **written).glob("results_*.json"))


def test_a_method_of_a_stranger_and_a_drafted_guide_stand_in_the_picture(tmp_path, capsys):
    """A drafted guide is a point where passes are counted: its own texts, in fewer passes; right of it nothing is saved."""
    plugin, run_dir = tmp_path / "mine.py", tmp_path / "grid"
    plugin.write_text(STRANGER)
    words = ["compare", "--tasks", "takeover_demo", "--rows", "base,guide,drafted,later,random@0.1", "--rates", "0.1,0.4"]
    words += ["--limit", "1", "--num_prompts", "2", "--num_held_out", "3", "--batch_size", "16", "--quiet"]
    with comparing_here():
        assert main([*words, "--model_args", f"plugins={plugin}", "--run_dir", str(run_dir)]) == 0
    assert main(["frontier", str(run_dir), "--out", str(run_dir), "--cost", "passes"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "A method that costs more saves nothing." in printed and "measured against guide" in printed
    lines = {line["row"]: line for line in read_lines(run_dir / "frontier.csv") if line["task"] == "average"}
    assert list(lines) == ["base", "guide", "drafted", "later@0.1", "later@0.4", "random@0.1"]
    assert 0 < float(lines["later@0.1"]["realized_rate"]) < float(lines["later@0.4"]["realized_rate"])
    guide, drafted = (float(lines[row]["donor_passes_per_token"]) for row in ("guide", "drafted"))
    assert drafted < 0.8 * guide and lines["drafted"]["realized_rate"] == "1.0"
    texts = [read_run(next((run_dir / row).glob("results/**/results_*.json"))) for row in ("guide", "drafted")]
    assert len({run.tasks["takeover_demo"].problems.texts for run in texts}) == 1
    areas = json.loads((run_dir / "frontier_area.json").read_text())
    assert list(read_areas(areas, "share")) == ["later", "random"]
    costs = {(a["axis"], a["metric"]): a["least_cost_90"] for a in areas if a["method"] == "drafted"}
    assert costs["passes", "acc"] == pytest.approx(drafted) and {axis for axis, _ in costs}.isdisjoint(AREA_AXES)
    picture = (run_dir / "frontier.svg").read_text()
    assert picture.count("<title>later@0.4: Acc") == 1 and ">later</text>" in picture
    assert ">drafted</text>" in picture and "<title>drafted" not in picture
    assert main(["leaderboard", str(run_dir), "--format", "json"]) == 0
    board = json.loads(capsys.readouterr().out)["rows"]
    assert {str(row["realized_rate"]) for row in board} == {line["realized_rate"] for line in lines.values()}


@pytest.mark.parametrize("policy", ["random", "early"])
def test_a_row_with_a_call_for_each_task_has_one_average(tmp_path, policy):
    counts = {"takeover_amc23": [3, 5, 1, 8], "takeover_aime24": [0, 2, 4]}
    rates = {"takeover_amc23": 0.02, "takeover_aime24": 0.06}
    results = {}
    for name, raised in (("base", 0), (policy, 1)):
        results[ComparedRow(name, name, follows=name != "base")] = runs = []
        for task, correct in counts.items():
            run = takeover(name, rate=rates[task], per_task={task: {"tokens": 1000, "realized_rate": rates[task]}})
            runs.append(write_run(tmp_path / name / task, {task: [min(8, one + raised) for one in correct]}, run=run))
    made = describe_frontier(results)
    assert made.areas == []  # no method has two rates
    lines = {line["task"]: line for line in made.lines if line["row"] == policy}
    assert list(lines) == [*counts, "average"]
    for name in ("realized_rate", "acc"):
        assert lines["average"][name] == pytest.approx(sum(lines[task][name] for task in counts) / 2)
    assert [lines[task]["realized_rate"] for task in counts] == list(rates.values())


def test_the_cost_of_a_row_is_that_of_all_its_calls(tmp_path):
    counts = [takeover("random", tokens=tokens, takeovers=tokens // 100, seconds=2.5) for tokens in (1000, 300)]
    runs = [write_run(tmp_path / f"{run['tokens']}", {"takeover_demo": [1, 2]}, run=run) for run in counts]
    (cost,) = describe_costs({ComparedRow("random", "random"): runs})
    assert (cost["tokens"], cost["takeovers"], cost["base_passes"], cost["seconds"]) == (1300, 13, 2200, 5.0)


def make_runs(tmp_path, counts, tasks=("takeover_demo",), samples=8):
    """Rows `NAME@RATE` with so many samples correct (by task) on each of 6 problems, at rates that double as shares of changed
    tokens.

    `short` can write 2 % at most, `hand` has its gate set by hand, `mix` mixes both models.
    """
    runs = {}
    for label, correct in counts.items():
        name, _, at = label.partition("@")
        rate = float(at or 0)
        told = {"tokens": 1000, "realized_rate": rate, "changed": int(1000 * rate), "asked": 1000}
        run = takeover("random" if at else "base", rate=rate, per_task=dict.fromkeys(tasks, told))
        own = {"rate": None if name == "hand" else rate, "covers": 0.1 if name == "short" else None, "word": name}
        row = ComparedRow(label, name, mixes=name == "mix", **(METHOD | own if at else {}))
        by_task = {task: [count] * 6 for task, count in zip(tasks, np.atleast_1d(correct).tolist(), strict=True)}
        runs[row] = [write_run(tmp_path / label, by_task, run=run, samples=samples)]
    return runs


def read_areas(areas, axis, task="average", metric="acc"):
    asked = {"axis": axis, "task": task, "metric": metric}
    return {area["method"]: area["area"] for area in areas if asked.items() <= area.items()}


def test_areas_stand_for_each_task_and_for_pass_at_k(tmp_path):
    """On one task half of the samples come at 5 %, which solves every problem; on the other none does."""
    counts = {"base": (0, 0), "guide": (8, 8), "far@0.05": (4, 0), "far@0.1": (4, 0)}
    runs = make_runs(tmp_path, counts, tasks := ("takeover_gsm8k", "takeover_amc23"))
    made = describe_frontier(runs)
    areas = {task: read_areas(made.all_areas, "share", task) for task in ("average", *tasks)}
    assert areas == {"average": {"far": pytest.approx(0.1875)}, "takeover_gsm8k": {"far": pytest.approx(0.375)},
                     "takeover_amc23": {"far": 0.0}}  # fmt: skip
    assert read_areas(made.all_areas, "share", "takeover_gsm8k", "pass8") == {"far": pytest.approx(0.75)}
    assert {(area["task"], area["metric"]) for area in made.areas} == {("average", "acc")}


def test_areas_of_pass_at_k_are_of_the_k_that_the_table_shows(tmp_path):
    """Of 16 samples the column has Pass@8, and so have areas and bands."""
    runs = make_runs(tmp_path, {"base": 0, "guide": 16, "far@0.05": 1, "far@0.1": 1}, samples=16)
    made = describe_frontier(runs)
    shown = {line["row"]: line for line in made.averages}
    assert [shown["far@0.1"][name] for name in ("pass8", "pass8_gain")] == pytest.approx([0.5, 0.5])
    assert read_areas(made.all_areas, "share", metric="pass8") == {"far": pytest.approx(0.5 * (1 - 0.5 * 0.5))}


def test_each_axis_has_the_methods_that_have_a_cost_there_and_one_that_can_write_no_more_keeps_its_gain(tmp_path):
    """Who may spend 10 % may spend 2 %. A gate by hand, at 1 %, sets no cap. A mix writes no token alone, but changes some."""
    counts = {"base": 0, "guide": 8, "far@0.05": 4, "far@0.1": 4, "short@0.02": 4, "hand@0.01": 4, "mix@0.05": 4, "mix@0.1": 4}
    made = describe_frontier(make_runs(tmp_path, counts))
    far, short, hand = (0.5 * (1 - 0.5 * cost) for cost in (0.5, 0.2, 0.1))
    assert read_areas(made.all_areas, "share") == pytest.approx({"far": far, "short": short, "hand": hand})
    assert read_areas(made.all_areas, "changed")["mix"] == pytest.approx(far)
    assert read_areas(made.all_areas, "asked") == dict.fromkeys(
        ["far", "short", "hand", "mix"]
    )  # one cost at all rates: no area
    shown = {line["row"]: [line[f"{name}_rate"] for name in ("realized", "changed", "asked")] for line in made.averages}
    assert (shown["far@0.1"], shown["mix@0.1"]) == ([0.1, 0.1, 1.0], [None, 0.1, 1.0])


def test_where_the_guide_writes_by_default_texts_say_so_and_rows_of_the_other_direction_have_no_area(tmp_path):
    runs = make_runs(tmp_path, {"base": 0, "guide": 8, "back@0.05": 4, "back@0.1": 4, "far@0.05": 4})
    swapped = {"host": "guide", "donor": "base"}
    runs = {replace(row, **swapped) if row.name == "back" else row: of_row for row, of_row in runs.items()}
    made = describe_frontier(runs)
    assert read_areas(made.all_areas, "share") == {"back": pytest.approx(-0.5 * (1 - 0.5 * 0.5))}
    table = write_frontier(made, "share", "md") + write_costs([], [], "md", made.host)
    for text in ("Areas by share of tokens that the base writes", "gain over the guide alone", "tokens that the base wrote"):
        assert text in table


def test_bands_of_gains_stand_beside_each_rate_of_a_method(tmp_path):
    """Of each task and metric; empty for models alone. A gate by hand has one, and a mix, whose cost is another."""
    counts = {"base": 1, "far@0.05": 4, "far@0.1": 5, "mix@0.05": 4, "hand@0.01": 3}
    made = describe_frontier(make_runs(tmp_path, counts))
    for line in made.lines:
        correct = {"far@0.05": 4, "far@0.1": 5, "mix@0.05": 4, "hand@0.01": 3}.get(line["row"])
        gain, low, high = (line[f"acc_gain{end}"] for end in ("", "_low", "_high"))
        if correct is None:
            assert (line["row"], gain, low, high) == ("base", None, None, None)
        else:
            assert gain == pytest.approx((correct - 1) / 8) and low < gain < high
            assert line["pass8_gain"] == 0  # the base solves each problem once


def test_an_oracle_from_effects_stands_beside_the_methods(tmp_path):
    """48 texts have 1,000 tokens in all. Each of the two positions stands for two: two takeovers gain a half, two do harm."""
    runs = make_runs(tmp_path, {"base": 0, "guide": 8, "far@0.05": 4, "far@0.1": 4})
    one = {"task": "takeover_demo", "doc_id": 2, "inclusion": 0.5}
    known = [one | {"shrunk": gain, "effect": 2 * gain} for gain in (0.5, -0.25)]
    (tmp_path / "effects.json").write_text(json.dumps(known))
    (tmp_path / "effect_examples.json").write_text(json.dumps({"run": "far@0.05"}))
    made = describe_frontier(runs, tmp_path)
    lines = {line["row"]: line for line in made.averages if line["method"] == "oracle"}
    assert list(lines) == ["oracle@0.05", "oracle@0.1"]
    assert lines["oracle@0.05"]["acc"] == pytest.approx(2 * 0.5 / 48)
    areas = {area["method"]: area for area in made.areas if area["axis"] == "share"}
    area = 2 * 0.5 / 48 * (1 - 0.002 / 0.1 / 2)
    assert areas["oracle"]["area"] == areas["oracle"]["area_low_step"] == pytest.approx(area)
    assert areas["oracle"]["area_high_step"] == pytest.approx(2 * area)
    share, *ends = (areas["far"][f"oracle_share{end}"] for end in ("", "_low", "_high"))
    assert share == pytest.approx(areas["far"]["area"] / area) and ends[0] < share / 2 < share < ends[1]
    table = write_frontier(made, "share", "md")
    shown = f"{100 * area:+.1f}", "{:.0f} ({:.0f} to {:.0f})".format(*(100 * each for each in (share, *ends)))
    assert all(text in table for text in (*shown, "Of oracle, %", "if effects of single takeovers add up"))
    draw_frontier(made.averages, "share", tmp_path / "frontier.svg")
    assert "<title>oracle@0.1: Acc" in (tmp_path / "frontier.svg").read_text()
    (tmp_path / "effects.json").write_text(
        json.dumps([known[0] | {"shrunk": 1e-28, "effect": 0.0}])
    )  # nothing is worth anything
    assert all(area["oracle_share"] in (None, 1) for area in describe_frontier(runs, tmp_path).all_areas)
    of_another = {"run": "ce@0.05"}, r"is of the run 'ce@0.05'; expected those of a row here"
    strange = [known[0] | {"doc_id": 6}], "has an effect on .*6.*; expected problems that the rows have"
    wrong = ("effects", [known[0] | {"inclusion": 0}], "inclusion"), ("effects", *strange), ("effect_examples", *of_another)
    for name, held, text in wrong:
        (tmp_path / f"{name}.json").write_text(json.dumps(held))
        with pytest.raises(ResultsError, match=text):
            describe_frontier(runs, tmp_path)


@pytest.mark.parametrize(("kinds", "problems", "samples"), [
    ("base", 1, 1), ("thinking", 6, 1), ("rates guide", 1, 8), ("rates early thinking base", 6, 1), ("guide base rates", 1, 1),
    ("guide base rates", 1, 8),
])  # fmt: skip
def test_any_rows_in_any_order_have_tables_and_a_picture(tmp_path, capsys, kinds, problems, samples):
    """`rates` are a method with two rates; `early` follows its rate."""
    runs = {}
    for kind in kinds.split():
        for rate in (0.02, 0.05) if kind == "rates" else (None,):
            run = takeover({"rates": "random"}.get(kind, kind), rate=rate or 0.03)
            run["per_task"] = {"takeover_demo": {"tokens": 1000, "realized_rate": run["realized_rate"]}}
            model = {"model": "hf"} if kind == "thinking" else {"run": run}
            label, method = f"{kind}@{rate}" if rate else kind, METHOD if kind in ("rates", "early") else {}
            row = ComparedRow(label, "random" if method else kind, rate=rate, follows=kind == "early", **method)
            runs[row] = [write_run(tmp_path / label, {"takeover_demo": [samples] * problems}, samples=samples, **model)]
    made = describe_frontier(runs)
    ends = [row.get(name) for row in (*made.lines, *made.all_areas) for name in ("low", "difference_high", "acc_gain_low")]
    assert all(end is None or -1 <= end <= 1 for end in ends)
    draw_frontier(made.averages, "share", tmp_path / "frontier.svg")
    assert len(made.averages) == len(runs)
    table, has_areas = write_frontier(made, "share", "table"), "rates" in kinds and "base" in kinds
    assert ("no areas: no method has two rates; give compare --rates" in table) is ("rates" not in kinds)
    assert table.startswith("Areas by share of tokens that the guide writes\n") is has_areas
    assert ("\nLeast share of tokens at which the guide is asked\n" in table) is has_areas
    assert ("no areas: they are gains over the base alone" in made.why) is ("rates" in kinds and not has_areas)
    assert capsys.readouterr().err == "" and (tmp_path / "frontier.svg").read_text().startswith("<?xml")
