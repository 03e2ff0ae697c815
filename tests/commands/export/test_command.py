"""`export`: what the Hub's reader says of the files, and by which name a pair goes there."""

import json
from pathlib import Path

import pytest
import yaml
from helpers.results import takeover, write_results
from huggingface_hub import parse_eval_result_entries

from lm_eval_takeover.cli import main
from lm_eval_takeover.errors import ArgumentError, ResultsError


def export(capsys, out, *results):
    assert main(["export", *map(str, results), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    return [Path(line) for line in printed.out.splitlines()], printed.err


@pytest.fixture
def whole(tmp_path):
    """A guided run over all of GSM8K and GPQA, a draw, and the demo."""
    counts = {
        "takeover_gsm8k": [4, 8, 0, 4],
        "takeover_gpqa_diamond": [1, 2],
        "takeover_math500_100": [3, 1],
        "takeover_demo": [2, 1],
    }
    return write_results(tmp_path / "run", counts, run=takeover(base="Qwen/Qwen3-0.6B-Base", guide="Qwen/Qwen3-8B"))


def test_the_hub_gets_whole_benchmarks_with_the_guide_in_the_notes(whole, tmp_path, capsys):
    files, said = export(capsys, tmp_path / "out", whole)
    assert {file.name for file in files} == {"takeover_gsm8k.yaml", "takeover_gpqa_diamond.yaml"}
    folder = tmp_path / "out" / "takeover" / "Qwen3-0.6B-Base+Qwen3-8B-disagreement" / ".eval_results"
    assert {file.parent for file in files} == {folder}  # never the name of the base
    entries = {file.stem: parse_eval_result_entries(yaml.safe_load(file.read_text()))[0] for file in files}
    gsm8k = entries["takeover_gsm8k"]
    assert (gsm8k.dataset_id, gsm8k.task_id, gsm8k.value) == ("openai/gsm8k", "gsm8k", 50.0)
    assert "guide Qwen/Qwen3-8B wrote 5.0% of the tokens" in gsm8k.notes
    assert "A pair, not Qwen/Qwen3-0.6B-Base alone" in gsm8k.notes
    assert "takeover_math500_100" in said and "only a part of the benchmark was asked" in said
    assert "it is no benchmark of the Hub" in said and "into a repository of the pair" in said


def test_a_limited_run_is_no_score_of_a_benchmark(tmp_path, capsys):
    write_results(tmp_path / "run", {"takeover_gsm8k": [4, 8]}, run=takeover(), config={"limit": 2.0})
    with pytest.raises(ArgumentError, match="nothing could be exported to hub"):
        export(capsys, tmp_path / "out", tmp_path / "run")


def test_names_of_a_stranger_s_results_stay_inside_of_out(whole, tmp_path, capsys):
    (file,) = whole.rglob("results_*.json")
    results = json.loads(file.read_text())
    results["config"]["takeover"] |= {"policy": "x/../../../outside"}
    results["config"]["takeover"]["base"]["id"] = ".."
    file.write_text(json.dumps(results))
    files, _ = export(capsys, tmp_path / "a" / "out", whole)
    assert files and all(path.resolve().is_relative_to(tmp_path / "a" / "out") for path in files)
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")} <= {"a", "run"}
    del results["config"]["takeover"]["base"]
    file.write_text(json.dumps(results))
    with pytest.raises(ResultsError, match=r"field 'config\.takeover\.base' is missing"):
        main(["export", str(whole), "--out", str(tmp_path / "b")])
