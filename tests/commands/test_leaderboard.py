"""`leaderboard`: rows, averages, Recovery with its reference or the reason why there is none, warnings, formats."""

import csv
import io
import json
import shutil
import subprocess

import numpy as np
import pytest
from helpers.results import takeover, write_results

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.results.statistics import holm

SIZES = {"takeover_amc23": 40, "takeover_aime24": 30, "takeover_gpqa_diamond_50": 50}
SHIFTS = {"base": -0.4, "random": -0.35, "guided": -0.05, "thinking": -0.1, "guide": 0.2}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Five runs on the same problems; the thinking one is stock `hf` with another temperature."""
    folder, generator = tmp_path_factory.mktemp("results"), np.random.default_rng(0)
    chances = {task: generator.beta(0.6, 0.6, count) for task, count in SIZES.items()}
    for name, shift in SHIFTS.items():
        counts = {t: generator.binomial(8, np.clip(p + shift, 0, 1)).tolist() for t, p in chances.items()}
        if name == "thinking":
            config = {"model_num_parameters": 600_000_000}
            args = {"pretrained": "acme/Small", "enable_thinking": True}
            write_results(
                folder / name, counts, model="hf", model_args=args, decoding={"temperature": 0.7}, config=config
            )
        else:
            run = takeover("disagreement" if name == "guided" else name, parameters={"base": 6e8, "guide": 8e9})
            write_results(folder / name, counts, run={**run, "parameters": {"base": 600_000_000}})
    return folder


def board(capsys, *words):
    assert main(["leaderboard", *map(str, words), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row["model"]: row for row in found["rows"]}, found["warnings"]


def test_rows_come_in_the_order_of_table_3_with_kinds_and_rates(results, capsys):
    rows, _ = board(capsys, results / "guide", results / "guided", results / "base", results / "random", "--thinking",
                    results / "thinking")  # fmt: skip
    assert [(name, row["kind"], row["realized_rate"]) for name, row in rows.items()] == [
        ("Small-Base", "base", 0.0),
        ("Small-Base + Guided", "guided", 0.05),
        ("Small-Base + Random", "random", 0.05),
        ("Small (thinking)", "thinking", None),
        ("Large (guide)", "guide", 1.0),
    ]
    assert all(row["source"] == "measured" for row in rows.values())


def test_cells_have_intervals_and_averages_leave_gpqa_out(results, capsys):
    rows, _ = board(capsys, results / "base")
    row = rows["Small-Base"]
    assert {task: (cell["problems"], cell["samples"]) for task, cell in row["tasks"].items()} == {
        task: (count, 8) for task, count in SIZES.items()
    }
    cells = [row["tasks"][task] for task in ("takeover_amc23", "takeover_aime24")]
    assert row["average"]["acc"] == pytest.approx(sum(cell["acc"] for cell in cells) / 2)
    for cell in (*row["tasks"].values(), row["average"]):
        assert 0 <= cell["acc_low"] < cell["acc"] < cell["acc_high"] <= cell["pass8_high"] <= 1


def test_recovery_is_against_the_thinking_model_else_the_guide(results, capsys):
    runs = [results / name for name in ("base", "guided", "guide")]
    by_guide, _ = board(capsys, *runs)
    by_thinking, _ = board(capsys, *runs, "--thinking", results / "thinking")
    for rows, reference in ((by_guide, "Large (guide)"), (by_thinking, "Small (thinking)")):
        row = rows["Small-Base + Guided"]
        average = {name: rows[name]["average"]["acc"] for name in ("Small-Base", "Small-Base + Guided", reference)}
        base, guided, thinking = average.values()
        assert row["reference"] == reference
        assert row["recovery"]["acc"] == pytest.approx((guided - base) / (thinking - base))
        assert row["recovery"]["acc_low"] < row["recovery"]["acc"] < row["recovery"]["acc_high"]
    assert by_guide["Small-Base"]["recovery"]["acc"] is None
    assert by_guide["Small-Base"]["recovery"]["acc_why"] == "a base row recovers nothing"


def test_recovery_is_blank_with_the_reason(results, capsys, tmp_path):
    rows, _ = board(capsys, results / "guided", results / "guide")
    assert "no row is the base alone" in rows["Small-Base + Guided"]["recovery"]["acc_why"]
    rows, _ = board(capsys, results / "base", results / "guided")
    assert "no reference" in rows["Small-Base + Guided"]["recovery"]["acc_why"]
    rows, _ = board(capsys, results / "base", results / "guided", "--thinking", results / "random")
    assert rows["Small-Base + Guided"]["recovery"]["pass8"] is None
    assert "beyond noise" in rows["Small-Base + Guided"]["recovery"]["pass8_why"]


def test_a_row_that_lacks_a_task_has_no_average_and_says_so(results, capsys, tmp_path):
    write_results(tmp_path, {"takeover_amc23": [4] * 40}, run=takeover("base"))
    rows, _ = board(capsys, results / "guided", tmp_path)
    assert rows["Small-Base"]["average"] is None
    assert rows["Small-Base"]["average_why"] == "without takeover_aime24"


def test_without_samples_there_are_means_and_a_line_that_says_what_cannot_be_computed(results, capsys, tmp_path):
    write_results(tmp_path / "b", {"takeover_amc23": [1, 2] * 20}, run=takeover("base"), logged=False)
    write_results(tmp_path / "m", {"takeover_amc23": [4, 5] * 20}, run=takeover(), logged=False)
    write_results(tmp_path / "g", {"takeover_amc23": [7, 8] * 20}, run=takeover("guide"), logged=False)
    rows, warnings = board(capsys, tmp_path / "b", tmp_path / "m", tmp_path / "g")
    cell = rows["Small-Base + Guided"]["tasks"]["takeover_amc23"]
    assert (cell["acc"], cell["acc_low"], cell["acc_high"]) == (0.5625, None, None)
    recovery = rows["Small-Base + Guided"]["recovery"]
    assert (
        recovery["acc"] == pytest.approx(0.5) and recovery["acc_low"] is None and "--log_samples" in recovery["acc_why"]
    )
    assert any("no samples of" in line for line in warnings)


def test_what_differs_between_rows_is_said_once_for_all_tasks(results, capsys):
    _, warnings = board(
        capsys, results / "base", results / "guided", results / "guide", "--thinking", results / "thinking"
    )
    (line,) = [line for line in warnings if "temperature" in line]
    assert (
        line == "rows differ in temperature: 0.7 (Small (thinking)), 0.6 (the rest) (aime24, amc23, gpqa_diamond_50)"
        or (line.startswith("rows differ in temperature: 0.7 (Small (thinking)), 0.6 (the rest) (amc23, aime24"))
    )
    _, none = board(capsys, results / "base", results / "guided")
    assert none == []


@pytest.mark.parametrize(
    ("pretrained", "config", "said"),
    [
        ("acme/Small", {"model_num_parameters": 600_000_000}, None),
        ("acme/Small", {}, None),
        (
            "acme/Small",
            {"model_num_parameters": 1_700_000_000},
            "Small (thinking), which has 1.7 B parameters, Small-Base 0.6 B",
        ),
        ("acme/Think-4B", {}, "Think-4B (thinking), which has 4 B parameters"),
        ("acme/Other", {}, "Other (thinking), and nothing says that it has the size of Small-Base"),
    ],
)
def test_a_reference_of_another_size_is_a_warning(results, tmp_path, capsys, pretrained, config, said):
    counts = {task: [5] * size for task, size in SIZES.items()}
    write_results(tmp_path / "thinking", counts, model="hf", model_args={"pretrained": pretrained}, config=config)
    _, warnings = board(capsys, results / "base", results / "guided", "--thinking", tmp_path / "thinking")
    found = [line for line in warnings if line.startswith("Recovery is against")]
    assert found == [] if said is None else len(found) == 1 and said in found[0]


def test_the_realized_rate_of_each_task_stands_beside_it(tmp_path, capsys):
    per_task = {"takeover_amc23": {"realized_rate": 0.04}, "takeover_aime24": {"realized_rate": 0.1}}
    counts = {"takeover_amc23": [3] * 40, "takeover_aime24": [1] * 30}
    write_results(tmp_path / "guided", counts, run=takeover(per_task=per_task))
    rows, _ = board(capsys, tmp_path / "guided")
    row = rows["Small-Base + Guided"]
    assert [row["tasks"][task]["task_rate"] for task in per_task] == [0.04, 0.1]
    assert row["average"]["task_rate"] == pytest.approx(0.07)
    assert main(["leaderboard", str(tmp_path / "guided"), "--columns", "task_rate", "--format", "md"]) == 0
    said = capsys.readouterr().out
    assert "Acc 37.5 / Pass@8 100.0 / realized rate 4.0" in said and "Acc / Pass@8 / realized rate" in said
    assert "Acc 12.5 / Pass@8 100.0 / realized rate 10.0" in said


def test_columns_on_the_reading_stand_in_each_cell(tmp_path, capsys):
    folder = write_results(tmp_path / "guided", {"takeover_amc23": [3] * 40}, run=takeover(), logged=False)
    (path,) = folder.glob("results_*.json")
    content = json.loads(path.read_text())
    content["results"]["takeover_amc23"] |= {"acc_boxed,all": 0.25, "unboxed,all": 0.3, "no_answer,all": 0.125}
    path.write_text(json.dumps(content))
    rows, _ = board(capsys, tmp_path / "guided")
    for cell in (rows["Small-Base + Guided"]["tasks"]["takeover_amc23"], rows["Small-Base + Guided"]["average"]):
        assert [cell[name] for name in ("acc_boxed", "unboxed", "no_answer")] == [0.25, 0.3, 0.125]
    assert main(["leaderboard", str(tmp_path / "guided"), "--columns", "reading", "--format", "md"]) == 0
    said = capsys.readouterr().out
    assert "Acc 37.5 / Pass@8 100.0 / Acc of boxes alone 25.0 / read without a box 30.0 / no answer 12.5" in said


def test_versus_pairs_by_problem_and_corrects_over_all_that_it_tests(results, capsys):
    rows, _ = board(capsys, results / "base", results / "guided", "--vs", results / "base")
    assert "vs" not in rows["Small-Base"]
    found = rows["Small-Base + Guided"]["vs"]["acc"]
    assert set(found) == {*SIZES, "average"}
    for task in SIZES:
        assert found[task]["how"] == "paired by problem"
        assert found[task]["low"] < found[task]["difference"] < found[task]["high"]
        assert found[task]["p_value"] <= found[task]["p_holm"] < 0.05
    rows, _ = board(capsys, results / "base", results / "guided", results / "random", "--vs", results / "base")
    tested = [
        one for row in rows.values() for name in ("acc", "pass8") for one in row.get("vs", {}).get(name, {}).values()
    ]
    assert len(tested) == 2 * 2 * 4
    assert [one["p_holm"] for one in tested] == pytest.approx(holm([one["p_value"] for one in tested]))
    with pytest.raises(ArgumentError, match="is 0 rows of the table"):
        board(capsys, results / "base", "--vs", results / "guided")


def test_published_rows_bear_their_tables_and_the_names_of_the_source(capsys):
    assert main(["leaderboard", "--published", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["source"] for row in rows} == {f"published, Table {number}" for number in (3, 7, 8, 9, 10, 11, 12)}
    first = rows[1]
    assert first["model"] == "+ Guided (spike ratio lost in print)" and first["realized_rate"] is None
    assert first["tasks"]["Math500"]["acc"] == 0.446 and first["tasks"]["Math500"]["acc_low"] is None
    assert (first["average"]["acc"], first["average"]["pass8"]) == (0.291, 0.614)
    recoveries = [row["recovery"] for row in rows if row["source"] == "published, Table 8"]
    assert [(r["acc"], r["pass8"]) for r in recoveries] == [(0.53, 0.91), (1.3, 1.57), (1.4, 1.37), (1.72, 1.56)]
    assert first["recovery"]["acc"] is None and "lost" in first["recovery"]["acc_why"]


def test_the_demo_runs_of_the_stock_command_make_a_table(capsys, monkeypatch):
    from results.test_runs import DATA

    monkeypatch.setenv("COLUMNS", "160")
    assert main(["leaderboard", *(str(DATA / name) for name in ("base", "guided", "guide", "hf"))]) == 0
    printed = capsys.readouterr().out
    assert "adds intervals" in printed and "95 %" not in printed
    assert "6.2 / 50.0" in printed and "Recovery is measured against demo-guide (guide)." in printed


def test_a_task_of_ones_own_has_the_pass_at_k_of_its_samples(tmp_path, capsys):
    counts = {"base": [0, 1, 0, 1] * 10, "guided": [3, 2, 3, 1] * 10, "guide": [3, 3, 3, 2] * 10}
    for name, correct in counts.items():
        run = takeover("disagreement" if name == "guided" else name)
        write_results(tmp_path / name, {"own": correct}, run=run, samples=3)
    rows, warnings = board(capsys, tmp_path)
    cell = rows["Small-Base + Guided"]["tasks"]["own"]
    assert (cell["k"], cell["pass8"], cell["maj8"], warnings) == (3, None, None, [])
    assert (cell["pass1"], cell["pass2"], cell["pass3"]) == pytest.approx((0.75, 11 / 12, 1.0))
    assert cell["maj3"] == 0.75 and cell["pass3_low"] < 1
    assert rows["Small-Base + Guided"]["recovery"]["pass3"] == pytest.approx(1.0)
    assert main(["leaderboard", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "75.0 / 100.0" in printed and "Acc / Pass@3, in %." in printed and "Pass@8" not in printed
    assert main(["leaderboard", str(tmp_path), "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert float(lines[2]["pass3"]) == 1.0 and lines[2]["pass8"] == ""
    write_results(tmp_path / "base", {"takeover_demo": [0, 4]}, run=takeover("base"), date="2026-01-02T00-00-00")
    assert main(["leaderboard", str(tmp_path / "base"), "--vs", str(tmp_path / "base")]) == 0
    assert "Average and Recovery are of Acc alone" in capsys.readouterr().out


def test_what_cannot_be_shown_is_a_line(tmp_path):
    folder = write_results(tmp_path, {"bleu_task": [0, 1]}, model="hf", model_args="pretrained=acme/x")
    (path,) = folder.glob("results_*.json")
    content = json.loads(path.read_text())
    content["configs"]["bleu_task"]["output_type"] = "loglikelihood"
    path.write_text(json.dumps(content))
    with pytest.raises(
        ArgumentError, match=r"nothing can be shown of .*it is loglikelihood; expected a task that generates"
    ):
        main(["leaderboard", str(tmp_path)])


def test_markdown_latex_and_csv_have_the_same_figures(results, capsys):
    words = ["leaderboard", str(results / "base"), str(results / "guided"), str(results / "guide")]
    printed = {}
    for name in ("json", "md", "latex", "csv"):
        assert main([*words, "--format", name]) == 0
        printed[name] = capsys.readouterr().out
    row = json.loads(printed["json"])["rows"][1]
    figure = f"{100 * row['average']['acc']:.1f} / {100 * row['average']['pass8']:.1f}"
    assert figure in printed["md"] and figure in printed["latex"]
    lines = [line for line in printed["md"].splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 5
    assert printed["latex"].count(r"\\") == 4 and "%" not in printed["latex"].replace(r"\%", "").split(r"\end")[0]
    averages = [line for line in csv.DictReader(io.StringIO(printed["csv"])) if line["task"] == "average"]
    assert float(averages[1]["acc"]) == row["average"]["acc"]
    assert float(averages[1]["recovery_acc"]) == row["recovery"]["acc"]


def test_nothing_to_print_is_a_wrong_call():
    with pytest.raises(ArgumentError, match="leaderboard needs RESULTS"):
        main(["leaderboard"])


def test_versions_of_a_task_are_not_mixed_silently(capsys, tmp_path):
    for name, version, policy in (("a", 1.1, "base"), ("b", 1.2, "disagreement")):
        counts = {"takeover_amc23": [1, 2] * 20}
        write_results(tmp_path / name, counts, run=takeover(policy), versions={"takeover_amc23": version})
    _, warnings = board(capsys, tmp_path / "a", tmp_path / "b")
    assert any(line.startswith("rows differ in task_version: 1.1 (Small-Base), 1.2 (") for line in warnings)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="compiles the table, and no pdflatex is installed")
def test_latex_compiles(results, capsys, tmp_path):
    words = [str(results / name) for name in ("base", "guided", "random", "guide")]
    assert main(["leaderboard", *words, "--format", "latex", "--published", "--columns", "maj8", "intervals"]) == 0
    table = capsys.readouterr().out
    page = f"\\documentclass{{article}}\n\\begin{{document}}\n{table}\\end{{document}}\n"
    (tmp_path / "table.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]


def test_a_recovery_with_a_wide_interval_is_empty_and_says_why(tmp_path, capsys):
    base = [0, 8, 3, 5, 2, 6, 1, 7, 4, 4]
    gains = {"base": [0] * 10, "guided": [3, -1, 4, -2, 3, -3, 4, -1, 2, 1], "guide": [2, 0, 1, 2, 3, 1, 3, 0, 2, 1]}
    for name, gained in gains.items():
        counts = {"takeover_amc23": [one + more for one, more in zip(base, gained, strict=True)]}
        write_results(tmp_path / name, counts, run=takeover("disagreement" if name == "guided" else name))
    rows, _ = board(capsys, tmp_path)
    recovery = rows["Small-Base + Guided"]["recovery"]
    assert (recovery["acc"], recovery["acc_low"], recovery["acc_high"]) == (None, None, None)
    assert main(["leaderboard", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Small-Base + Guided (Acc): {recovery['acc_why']}." in said and "wider than 100 points" in said
