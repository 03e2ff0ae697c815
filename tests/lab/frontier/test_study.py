"""frontier: methods of a comparison against cost, and folders of several comparisons."""

import csv
import json
import statistics
from dataclasses import replace

import numpy as np
import pytest
from helpers.one_line import one_line
from helpers.results import takeover, write_results
from helpers.stock import comparing_here

from lm_eval_takeover.calibration.files import find_calibration, write_calibration
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare.running import write_costs
from lm_eval_takeover.errors import ArgumentError, ResultsError, TakeoverError
from lm_eval_takeover.lab.frontier import AREA_AXES
from lm_eval_takeover.lab.frontier.output import draw_frontier, write_frontier
from lm_eval_takeover.lab.frontier.study import describe_frontier
from lm_eval_takeover.results.files import join_calls, read_run
from lm_eval_takeover.results.kept_rows import ComparedRow, write_kept_rows


def test_a_method_and_a_drafted_guide_stand_in_the_picture(tmp_path, printed, answered):
    """A drafted guide is a point where passes are counted: its own texts, in fewer passes; right of it nothing is saved."""
    run_dir = tmp_path / "grid"
    words = ["compare", "--tasks", "takeover_demo", "--rows", "base,guide,drafted,random", "--rates", "0.1,0.4"]
    words += ["--limit", "1", "--num_prompts", "2", "--num_held_out", "3", "--batch_size", "16", "--quiet"]
    with comparing_here():
        table = printed(*words, "--run_dir", run_dir)
    shown = " ".join(f"{table} {printed('frontier', run_dir, '--out', run_dir, '--cost', 'passes')}".split())
    assert "A method that costs more saves nothing." in shown and "measured against guide" in shown
    assert not [*run_dir.glob("calibration*")]  # for the share of `random` none is needed
    table = csv.DictReader((run_dir / "frontier.csv").read_text().splitlines())
    lines = {line["row"]: line for line in table if line["task"] == "average"}
    assert list(lines) == ["base", "guide", "drafted", "random@0.1", "random@0.4"]
    rates = [float(lines[f"random@{rate}"]["realized_rate"]) for rate in (0.1, 0.4)]
    assert rates == [pytest.approx(0.1, abs=0.04), pytest.approx(0.4, abs=0.08)]
    guide, drafted = (float(lines[row]["donor_passes_per_token"]) for row in ("guide", "drafted"))
    assert drafted < 0.8 * guide and lines["drafted"]["realized_rate"] == "1.0"
    texts = [read_run(next((run_dir / row).glob("results/**/results_*.json"))) for row in ("guide", "drafted")]
    assert len({run.tasks["takeover_demo"].problems.texts for run in texts}) == 1
    areas = json.loads((run_dir / "frontier_area.json").read_text())
    assert list(read_areas(areas, "share")) == ["random"]
    costs = {(a["axis"], a["metric"]): a["least_cost_90"] for a in areas if a["method"] == "drafted"}
    assert costs["passes", "acc"] == pytest.approx(drafted) and {axis for axis, _ in costs}.isdisjoint(AREA_AXES)
    picture = (run_dir / "frontier.svg").read_text()
    assert picture.count("<title>random@0.4: Acc") == 1 and ">random</text>" in picture
    assert ">drafted</text>" in picture and "<title>drafted" not in picture
    _, board = answered("leaderboard", run_dir)
    assert {str(row["realized_rate"]) for row in board["rows"]} == {line["realized_rate"] for line in lines.values()}


@pytest.mark.parametrize("policy", ["random", "early"])
def test_a_row_with_a_call_for_each_task_has_one_average(tmp_path, policy):
    counts = {"takeover_amc23": [3, 5, 1, 8], "takeover_aime24": [0, 2, 4]}
    rates = {"takeover_amc23": 0.02, "takeover_aime24": 0.06}
    results = {}
    for name, raised in (("base", 0), (policy, 1)):
        runs = []
        for task, correct in counts.items():
            run = takeover(name, rate=rates[task], per_task={task: {"tokens": 1000, "realized_rate": rates[task]}})
            folder = write_results(tmp_path / name / task, {task: [min(8, one + raised) for one in correct]}, run=run)
            runs.append(read_run(*folder.glob("results_*.json")))
        results[ComparedRow(name, name, follows=name != "base")] = join_calls(runs)
    made = describe_frontier(results)
    assert made.areas == []  # no method has two rates
    lines = {line["task"]: line for line in made.lines if line["row"] == policy}
    assert list(lines) == [*counts, "average"]
    for name in ("realized_rate", "acc"):
        assert lines["average"][name] == pytest.approx(sum(lines[task][name] for task in counts) / 2)
    assert [lines[task]["realized_rate"] for task in counts] == list(rates.values())


ALONE = {"base": [0, 1, 2, 1, 0, 3], "guide": [8, 7, 8, 8, 6, 8]}
NEAR = {"near@0.05": [4, 3, 8, 2, 5, 6], "near@0.1": [6, 6, 8, 4, 7, 8]}
FAR = {"far@0.05": [1, 1, 3, 1, 0, 4], "far@0.1": [2, 2, 5, 2, 1, 6]}


def write_comparison(folder, counts, tasks=("takeover_demo",), *, seed=0, pair="acme/Small-Base", calibration=None, **written):
    """A folder as `compare` leaves it. Returns its rows with their runs: NAME@RATE, where as many tokens have changed.

    `counts` are samples of 8 that are correct, by problem; or a number by task, the same for six problems. `short` can write 2 %
    at most, `hand` has its gate set by hand, `mix` mixes both models.
    """
    runs = {}
    for label, correct in counts.items():
        name, _, at = label.partition("@")
        rate = float(at or 0)
        taken = round(1000 * rate)
        told = {"tokens": 1000, "takeovers": taken, "realized_rate": rate, "changed": taken, "asked": 1000}
        told["identity"] = f"{label} of {pair}, {seed}"
        given = {"base": pair, "seed": seed, "calibration": calibration, "per_task": dict.fromkeys(tasks, told)}
        run = takeover("random" if at else name, rate=rate, **given)
        own = {"rate": None if name == "hand" else rate, "covers": 0.1 if name == "short" else None}
        own |= {"host": "base", "donor": "guide", "word": name}
        by_task = [correct] if isinstance(correct, list) else [[count] * 6 for count in np.atleast_1d(correct).tolist()]
        results = write_results(folder / label / "results", dict(zip(tasks, by_task, strict=True)), run=run, **written)
        row = ComparedRow(label, name, results=[f"{label}/results"], mixes=name == "mix", **(own if at else {}))
        (folder / label / "row.json").write_text(json.dumps(dict.fromkeys(tasks, told["identity"])))
        runs[row] = read_run(*results.glob("results_*.json"))
    write_kept_rows(folder, runs)
    return runs


def read_areas(areas, axis, task="average", metric="acc"):
    asked = {"axis": axis, "task": task, "metric": metric}
    return {area["method"]: area["area"] for area in areas if asked.items() <= area.items()}


def test_areas_stand_for_each_task_and_for_pass_at_k(tmp_path):
    """On one task half of the samples come at 5 %, which solves every problem; on the other none does."""
    counts = {"base": (0, 0), "guide": (8, 8), "far@0.05": (4, 0), "far@0.1": (4, 0)}
    runs = write_comparison(tmp_path, counts, tasks := ("takeover_gsm8k", "takeover_amc23"))
    made = describe_frontier(runs)
    areas = {task: read_areas(made.all_areas, "share", task) for task in ("average", *tasks)}
    assert areas == {"average": {"far": pytest.approx(0.1875)}, "takeover_gsm8k": {"far": pytest.approx(0.375)},
                     "takeover_amc23": {"far": 0.0}}  # fmt: skip
    assert read_areas(made.all_areas, "share", "takeover_gsm8k", "pass8") == {"far": pytest.approx(0.75)}
    assert {(area["task"], area["metric"]) for area in made.areas} == {("average", "acc")}


def test_each_axis_has_the_methods_that_have_a_cost_there_and_one_that_can_write_no_more_keeps_its_gain(tmp_path):
    """Who may spend 10 % may spend 2 %. A gate by hand, at 1 %, sets no cap. A mix writes no token alone, but changes some."""
    counts = {"base": 0, "guide": 8, "far@0.05": 4, "far@0.1": 4, "short@0.02": 4, "hand@0.01": 4, "mix@0.05": 4, "mix@0.1": 4}
    made = describe_frontier(write_comparison(tmp_path, counts))
    far, short, hand = (0.5 * (1 - 0.5 * cost) for cost in (0.5, 0.2, 0.1))
    assert read_areas(made.all_areas, "share") == pytest.approx({"far": far, "short": short, "hand": hand})
    assert read_areas(made.all_areas, "changed")["mix"] == pytest.approx(far)
    # One cost at all rates: no area.
    assert read_areas(made.all_areas, "asked") == dict.fromkeys(["far", "short", "hand", "mix"])
    shown = {line["row"]: [line[f"{name}_rate"] for name in ("realized", "changed", "asked")] for line in made.averages}
    assert (shown["far@0.1"], shown["mix@0.1"]) == ([0.1, 0.1, 1.0], [None, 0.1, 1.0])


def test_where_the_guide_writes_by_default_texts_say_so_and_rows_of_the_other_direction_have_no_area(tmp_path):
    runs = write_comparison(tmp_path, {"base": 0, "guide": 8, "back@0.05": 4, "back@0.1": 4, "far@0.05": 4})
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
    made = describe_frontier(write_comparison(tmp_path, counts))
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
    runs = write_comparison(tmp_path, {"base": 0, "guide": 8, "far@0.05": 4, "far@0.1": 4})
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
    assert "<title>oracle@0.1: Acc" in draw_frontier(made.averages, "share")
    measured = {"run": "far@0.05", "identities": {"takeover_demo": "far@0.05 of acme/Small-Base, 0"}}
    (tmp_path / "effect_examples.json").write_text(json.dumps(measured))
    command = ["frontier", str(tmp_path), "--effects", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    measured["identities"] = {"takeover_demo": "far@0.05 of acme/Small-Base, 1"}
    (tmp_path / "effect_examples.json").write_text(json.dumps(measured))
    with one_line(ResultsError, "is of a run 'far@0.05' that is no row here"):
        main(command)
    worthless = known[0] | {"shrunk": 1e-28, "effect": 0.0}
    (tmp_path / "effects.json").write_text(json.dumps([worthless]))
    assert all(area["oracle_share"] in (None, 1) for area in describe_frontier(runs, tmp_path).all_areas)
    of_another = {"run": "ce@0.05"}, r"is of the run 'ce@0.05'; expected those of a row here"
    strange = [known[0] | {"doc_id": 6}], "has an effect on .*6.*; expected problems that the rows have"
    wrong = ("effects", [known[0] | {"inclusion": 0}], "inclusion"), ("effects", *strange), ("effect_examples", *of_another)
    for name, held, text in wrong:
        (tmp_path / f"{name}.json").write_text(json.dumps(held))
        with pytest.raises(ResultsError, match=text):
            describe_frontier(runs, tmp_path)


@pytest.mark.parametrize(("labels", "why"), [
    ("base", "no areas: no method has two rates; give compare --rates"),
    ("far@0.02 far@0.05 guide", "no areas: they are gains over the base alone"), ("guide base far@0.02 far@0.05", ""),
])  # fmt: skip
def test_any_rows_in_any_order_have_tables_and_a_picture(tmp_path, labels, why):
    made = describe_frontier(write_comparison(tmp_path, dict.fromkeys(labels.split(), 1)))
    table = write_frontier(made, "share", "table")
    assert len(made.averages) == len(labels.split()) and draw_frontier(made.averages, "share").startswith("<?xml")
    if why:
        assert why in table
    else:
        assert table.startswith("Areas by share of tokens that the guide writes\n")
        assert "\nLeast share of tokens at which the guide is asked\n" in table


def merge(tmp_path, other="two"):
    """The averages of all rows, and all areas."""
    words = ["frontier", *(str(tmp_path / name) for name in ("one", other))]
    assert main([*words, "--out", str(tmp_path / "merged")]) == 0
    lines, areas = (json.loads((tmp_path / "merged" / f"{name}.json").read_text()) for name in ("frontier", "frontier_area"))
    return [line for line in lines if line["task"] == "average"], areas


def test_groups_of_methods_are_merged_as_if_they_had_run_together(tmp_path, capsys):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    write_comparison(tmp_path / "two", ALONE | FAR)
    together = describe_frontier(write_comparison(tmp_path / "all", ALONE | NEAR | FAR))
    lines, areas = merge(tmp_path)
    assert [line["row"] for line in lines] == [*ALONE, *NEAR, *FAR]
    assert {line["seeds"] for line in lines} == {1} and {line["acc_between_seeds"] for line in lines} == {None}
    assert areas == json.loads(json.dumps(together.all_areas))
    printed = capsys.readouterr()
    assert "Areas by share of tokens" in printed.out and printed.err == ""
    assert ">far</text>" in (tmp_path / "merged" / "frontier.svg").read_text()


def test_seeds_of_a_row_are_one_row_with_the_spread_between_them(tmp_path):
    other = {label: correct[1:] + correct[:1] for label, correct in NEAR.items()} | {"near@0.05": [8, 3, 8, 2, 5, 6]}
    write_comparison(tmp_path / "one", ALONE | NEAR)
    write_comparison(tmp_path / "two", ALONE | other, seed=1)
    lines, areas = merge(tmp_path)
    assert [(line["row"], line["seeds"]) for line in lines] == [(label, 2) for label in ALONE | NEAR]
    accs = {label: [sum(counts[label]) / 48 for counts in (NEAR, other)] for label in NEAR}
    for line in lines[2:]:
        assert line["acc"] == pytest.approx(statistics.mean(accs[line["row"]]))
        assert line["acc_between_seeds"] == pytest.approx(statistics.stdev(accs[line["row"]]))
        assert line["realized_rate"] == line["rate"]
        rights = [NEAR[line["row"]], other[line["row"]]], [ALONE["guide"]] * 2  # by side and seed
        own, its = (np.hstack([np.arange(8) < np.array(counts)[:, None] for counts in side]) for side in rights)
        pairs = (own[:, :, None] == its[:, None])[:, ~np.eye(16, dtype=bool)]  # of two places
        assert line["same_as_guide"] == pytest.approx(pairs.mean())
    gains = [statistics.mean(accs[label]) - sum(ALONE["base"]) / 48 for label in NEAR]
    assert read_areas(areas, "share") == {"near": pytest.approx(gains[0] / 4 + (gains[0] + gains[1]) / 4)}


def test_pairs_stand_in_one_figure_each_with_its_own_base(tmp_path, capsys):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    write_comparison(tmp_path / "two", {"base": [4] * 6, "guide": [8] * 6} | NEAR, pair="acme/Other-Base")
    lines, areas = merge(tmp_path)
    pairs = ["Small-Base + Large", "Other-Base + Large"]
    assert [line["pair"] for line in lines] == [pair for pair in pairs for _ in ALONE | NEAR]
    first, second = (read_areas([area for area in areas if area["pair"] == pair], "share")["near"] for pair in pairs)
    assert first > second
    picture, printed = (tmp_path / "merged" / "frontier.svg").read_text(), capsys.readouterr().out
    assert all(f">Acc, {pair}</text>" in picture and f"{pair}\nAreas by" in printed for pair in pairs)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"counts": {"base": [1] * 5, "guide": [8] * 5}}, "differ in problems of takeover_demo"),
        ({"verifier": "math_verify"}, "differ in verifier: takeover -> math_verify"),
        ({"decoding": {"temperature": 1.0}}, "differ in temperature: 0.6 -> 1.0"),
        ({"calibration": "two"}, "differ in calibration prompts"),
        ({"seed": 1, "counts": ALONE | FAR}, "rows differ in seeds: base has [0, 1], near@0.05 has [0]"),
    ],
    ids=["problems", "verifier", "decoding", "prompts", "seeds"],
)
def test_what_cannot_be_compared_is_refused_in_one_line_that_says_why(tmp_path, changed, text):
    packaged, _ = find_calibration("demo")
    for name in ("one", "two"):
        given = {"counts": ALONE | NEAR, "calibration": "one"} | (changed if name == "two" else {})
        write_comparison(tmp_path / name, given.pop("counts"), **given)
        prompts = packaged.prompts | ({"problems": packaged.prompts["problems"][1:]} if name == "two" else {})
        write_calibration(replace(packaged, prompts=prompts), tmp_path / name / f"{name}.json")
    with one_line(ArgumentError, text):
        merge(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"--out '.*file' cannot be written"):
        main(["frontier", str(tmp_path / "one"), "--out", str(tmp_path / "file")])


def test_the_leaderboard_of_a_folder_leaves_out_drafted_which_has_the_text_of_guide(tmp_path, answered):
    write_comparison(tmp_path / "one", ALONE | NEAR | {"drafted": ALONE["guide"]})
    for given, count in ((tmp_path / "one", 4), (tmp_path / "one" / "drafted", 1)):
        rows = answered("leaderboard", given)[1]["rows"]
        assert len(rows) == count and ("drafted" in {row["model"] for row in rows}) <= (count == 1)


def test_after_a_stopped_call_with_another_limit_each_row_has_its_last_results(tmp_path, answered):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    given = takeover("base", base="acme/Small-Base")
    write_results(tmp_path / "one/base/results", {"takeover_demo": [1] * 12}, run=given, date="2026-01-02T00-00-00")
    rows = answered("leaderboard", tmp_path / "one", "--vs", tmp_path / "one/base")[1]["rows"]
    sizes = {row["model"]: row["tasks"]["takeover_demo"]["problems"] for row in rows}
    assert sizes == dict.fromkeys(ALONE | NEAR, 6) | {"base": 12}


def test_a_rescored_row_has_one_accuracy_in_frontier_and_leaderboard(tmp_path, answered):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    told = {"base": "acme/Small-Base", "seed": 0, "per_task": {"takeover_demo": {"identity": "base of acme/Small-Base, 0"}}}
    again = takeover("base", rescored=True, **told)
    place = tmp_path / "one" / "base" / "samples" / "rescored"
    write_results(place, {"takeover_demo": [5] * 6}, run=again, date="2026-01-02T00-00-00")
    (row,) = (row for row in answered("leaderboard", tmp_path / "one")[1]["rows"] if row["model"] == "base")
    (point,) = (line for line in merge(tmp_path, "one")[0] if line["row"] == "base")
    assert row["tasks"]["takeover_demo"]["acc"] == point["acc"] == 5 / 8
    told["per_task"]["takeover_demo"]["identity"] = "a row that an earlier command had here"
    again = takeover("base", rescored=True, **told)
    write_results(place / "1", {"takeover_demo": [7] * 6}, run=again, date="2026-01-03T00-00-00")
    rows = [row for row in answered("leaderboard", tmp_path / "one")[1]["rows"] if row["model"].startswith("base")]
    assert [row["tasks"]["takeover_demo"]["acc"] for row in rows] == [5 / 8]


def test_only_folders_of_compare_are_read(tmp_path):
    write_comparison(tmp_path / "one", ALONE | NEAR)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArgumentError, match=r"empty' has no rows.json, which `compare --run_dir` writes"):
        merge(tmp_path, "empty")
    (first, *_) = json.loads((tmp_path / "one" / "rows.json").read_text())
    for rows, text in (({}, "expected a list"), ([1], "expected"), ([{}], "label"), ([first | {"results": [".."]}], "outside")):
        (tmp_path / "empty" / "rows.json").write_text(json.dumps(rows))
        with pytest.raises(TakeoverError, match=text):
            merge(tmp_path, "empty")
    with pytest.raises(ArgumentError, match=r"has no effects.json; expected what `effects --out` wrote"):
        main(["frontier", str(tmp_path / "one"), "--effects", str(tmp_path), "--out", str(tmp_path / "new")])
