"""`export`: what others' schemas and readers say of the files, and by which name a pair goes there."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import yaml
from helpers.results import takeover, write_results
from huggingface_hub import parse_eval_result_entries
from results.test_runs import DATA

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.export.source import read_sources
from lm_eval_takeover.errors import ArgumentError, ResultsError

SCHEMAS = Path(__file__).parent / "data"  # of every-eval-ever 0.3.0
NAMES = ("base", "guided", "guide", "hf")


def export(capsys, to, out, *results):
    assert main(["export", *map(str, results), "--to", to, "--out", str(out)]) == 0
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


def test_every_eval_ever_takes_records_and_rows(tmp_path, capsys):
    jsonschema = pytest.importorskip("jsonschema", reason="checks the schema of every-eval-ever, and is not installed")
    record, row = (
        jsonschema.Draft7Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))
        for name in ("eval", "instance_level_eval")
    )
    files, _ = export(capsys, "eee", tmp_path, *(DATA / name for name in NAMES))
    assert len(files) == 8
    for file in files:
        if file.suffix == ".json":
            record.validate(json.loads(file.read_text()))
        else:
            for line in file.read_text().splitlines():
                row.validate(json.loads(line))


def test_rows_of_samples_belong_to_their_record_and_give_its_score(tmp_path, capsys):
    (samples, file), _ = export(capsys, "eee", tmp_path, DATA / "base")
    record = json.loads(file.read_text())
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    detailed = record["detailed_evaluation_results"]
    assert tmp_path / detailed["file_path"] == samples and detailed["total_rows"] == len(rows) == 32
    assert detailed["checksum"] == hashlib.sha256(samples.read_bytes()).hexdigest()
    acc = record["evaluation_results"][0]
    assert {row["evaluation_result_id"] for row in rows} == {acc["evaluation_result_id"]}
    assert {row["evaluation_id"] for row in rows} == {record["evaluation_id"]}
    assert sum(row["evaluation"]["score"] for row in rows) / 32 == acc["score_details"]["score"]
    assert len({row["sample_id"] for row in rows}) == 32
    again, _ = export(capsys, "eee", tmp_path, DATA / "base")
    assert again == [samples, file]


@pytest.mark.parametrize("to", ["eee", "hub", "inspect"])
def test_a_pair_is_never_called_by_the_name_of_its_base(whole, tmp_path, capsys, to):
    files, _ = export(capsys, to, tmp_path / "out", whole)
    assert files
    for file in files:
        text = file.read_text()
        assert "Qwen/Qwen3-8B" in text or file.suffix == ".jsonl"
        assert "takeover/Qwen3-0.6B-Base+Qwen3-8B-disagreement" in str(file) + text
        if file.suffix == ".json":
            content = json.loads(text)
            model = content["model_info"]["id"] if to == "eee" else content["eval"]["model"]
            assert model == "takeover/Qwen3-0.6B-Base+Qwen3-8B-disagreement"


def test_the_hub_gets_whole_benchmarks_with_the_guide_in_the_notes(whole, tmp_path, capsys):
    files, said = export(capsys, "hub", tmp_path / "out", whole)
    assert {file.name for file in files} == {"takeover_gsm8k.yaml", "takeover_gpqa_diamond.yaml"}
    assert {file.parent.name for file in files} == {".eval_results"}
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
        export(capsys, "hub", tmp_path / "out", tmp_path / "run")


def test_questions_of_gpqa_are_not_published(whole, tmp_path, capsys):
    (samples, _), said = export(capsys, "eee", tmp_path / "out", whole)
    names = {json.loads(line)["evaluation_name"] for line in samples.read_text().splitlines()}
    assert names == {"takeover_gsm8k", "takeover_math500_100", "takeover_demo"}
    assert "its authors ask not to publish its questions" in said


def test_inspect_reads_its_logs(tmp_path, capsys):
    log = pytest.importorskip("inspect_ai.log", reason="reads the logs, and inspect_ai is not installed")
    files, _ = export(capsys, "inspect", tmp_path, *(DATA / name for name in NAMES))
    assert len(files) == 4
    for file in files:
        read = log.read_eval_log(str(file))
        assert (read.status, len(read.samples), read.eval.config.epochs) == ("success", 32, 8)
        scores = [sample.scores["lm_eval_takeover"].value == "C" for sample in read.samples]
        assert sum(scores) / 32 == pytest.approx(read.results.scores[0].metrics["acc"].value)
        assert {sample.epoch for sample in read.samples} == set(range(1, 9))
    assert len(log.list_eval_logs(str(tmp_path))) == 4  # what its viewer lists


def test_logs_of_inspect_hold_every_sample(tmp_path, capsys):
    ((file,), _) = export(capsys, "inspect", tmp_path, DATA / "guided")
    content = json.loads(file.read_text())
    assert (content["version"], content["status"], len(content["samples"])) == (2, "success", 32)
    assert content["results"]["scores"][0]["metrics"]["acc"]["value"] == 1.0
    assert content["eval"]["metadata"]["realized_rate"] == pytest.approx(0.0476, abs=1e-4)


def test_results_without_samples_are_exported_without_rows(tmp_path, capsys):
    write_results(tmp_path / "run", {"takeover_gsm8k": [4, 8]}, run=takeover(), logged=False)
    ((file,), _) = export(capsys, "eee", tmp_path / "out", tmp_path / "run")
    assert "detailed_evaluation_results" not in json.loads(file.read_text())
    _, said = export(capsys, "inspect", tmp_path / "logs", tmp_path / "run")
    assert "run with --log_samples" in said


def test_a_broken_samples_file_is_a_line_with_file_line_and_field(tmp_path):
    folder = Path(shutil.copytree(DATA / "guided", tmp_path / "guided"))
    (source,), _ = read_sources([folder])
    path = next(folder.glob("samples_*.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[1]["resps"] = "text"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ResultsError, match=r"samples_.*, line 2: field 'resps' is \"text\", expected a list"):
        list(source.samples("takeover_demo"))


@pytest.mark.parametrize("to", ["eee", "hub", "inspect"])
def test_names_of_a_stranger_s_results_stay_inside_of_out(whole, tmp_path, capsys, to):
    (file,) = whole.rglob("results_*.json")
    results = json.loads(file.read_text())
    results["config"]["takeover"] |= {"policy": "x/../../../outside"}
    results["config"]["takeover"]["base"]["id"] = ".."
    file.write_text(json.dumps(results))
    files, _ = export(capsys, to, tmp_path / "a" / "out", whole)
    assert files and all(path.resolve().is_relative_to(tmp_path / "a" / "out") for path in files)
    assert {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")} <= {"a", "run"}
    del results["config"]["takeover"]["base"]
    file.write_text(json.dumps(results))
    with pytest.raises(ResultsError, match=r"field 'config\.takeover\.base' is missing"):
        main(["export", str(whole), "--to", to, "--out", str(tmp_path / "b")])


def test_a_task_s_name_is_no_path(whole, tmp_path):
    (file,) = whole.rglob("results_*.json")
    file.write_text(file.read_text().replace("takeover_demo", "takeover_/../../demo"))
    with pytest.raises(ResultsError, match=r"names a task 'takeover_/\.\./\.\./demo'; expected a name without"):
        main(["export", str(whole), "--to", "eee", "--out", str(tmp_path / "out")])
