"""The tasks on the real data files, through their hub ids, with a model that knows the answers."""

import json
import re
import shutil
from pathlib import Path

import datasets
import pytest
import yaml
from helpers.pairs import ROOT
from helpers.processes import HELPERS
from helpers.read_once import made_once
from helpers.scripted import Scripted
from helpers.tables import read_table
from lm_eval import evaluator

import lm_eval_takeover
from lm_eval_takeover.storage.files import TASK_CONFIGS
from lm_eval_takeover.tasks import benchmarks
from lm_eval_takeover.tasks.sampled import load_named_tasks
from lm_eval_takeover.tasks.verdicts import list_metrics

COUNTS = {
    "takeover_math500": 500,
    "takeover_gsm8k": 1319,
    "takeover_amc23": 40,
    "takeover_olympiadbench": 674,
    "takeover_aime24": 30,
    "takeover_aime25": 30,
    "takeover_gpqa_diamond": 24,
}  # fmt: skip  (198 on the hub: the stand-in has 24 questions of its own)


def evaluate(server, *arguments):
    """lm-eval's results of a model that knows the gold answers, as JSON: see `scripted.py`."""
    return server.run(HELPERS / "scripted.py", *arguments, cwd=ROOT).stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def everything(forked_at_hub, shared_folder):
    """The first 30 documents of each task: `gold_forms` below judges the gold answers of all."""
    path = shared_folder / "everything.json"
    made_once(path, lambda new: new.write_text(evaluate(forked_at_hub, "takeover_all", "null", "30")))
    return json.loads(path.read_text())


def test_every_benchmark_has_its_documents_and_metrics_and_right_answers_are_right(everything):
    sizes = {task: count["original"] for task, count in everything["n-samples"].items()}
    assert {task: sizes[task] for task in COUNTS} == COUNTS
    for task in COUNTS:
        results = everything["results"][task]
        names = [key.partition(",") for key in results if "stderr" not in key]
        assert {name for name, _, kind in names if kind == "all"} == {entry["metric"] for entry in list_metrics(8)}
        assert {sample["acc"] for sample in everything["samples"][task]} == {7 / 8}
        assert (results["pass@8,all"], results["maj@8,all"], results["no_answer,all"]) == (1.0, 1.0, 0.125)
    sample = everything["samples"]["takeover_math500"][0]
    (record,) = sample["filtered_resps"]
    assert [outcome for _, outcome in record] == ["correct"] * 3 + ["no_answer"] + ["correct"] * 4
    assert record[3] == ["", "no_answer"] and len(sample["resps"][0]) == 8


def test_a_group_average_of_unequal_tasks_is_not_weighted_by_size(forked_at_hub, tmp_path):
    """With tasks of unequal accuracy the two means differ, which equal ones could not show."""
    script = tmp_path / "unequal.py"
    script.write_text(
        "import sys; sys.path.insert(0, 'tests'); import json; from helpers import demo_runs, scripted\n"
        "class Model(scripted.Scripted):\n"
        "    def _reply(self, request):\n"
        "        return super()._reply(request) if len(request.doc['problem']) % 2 else 'none'\n"
        "r = demo_runs.evaluate(Model(), ['takeover_math'], limit=0.1, bootstrap_iters=1000)\n"
        "rows = {k: [v['acc,all'], v['acc_stderr,all'], v['sample_len']] for k, v in r['results'].items()}\n"
        "print(json.dumps([rows, r['versions']]))"
    )
    done = forked_at_hub.run(script, cwd=ROOT)
    results, versions = json.loads(done.stdout.splitlines()[-1])
    assert float(versions["takeover_math"]) == 1.3
    group, error, _ = results.pop("takeover_math")
    assert group == pytest.approx(sum(acc for acc, *_ in results.values()) / 6)
    sizes = [size for *_, size in results.values()]
    assert group != pytest.approx(sum(acc * size for acc, _, size in results.values()) / sum(sizes))
    assert error == pytest.approx(sum(stderr**2 for _, stderr, _ in results.values()) ** 0.5 / 6)


def test_the_papers_sizes_and_draws(forked_at_hub):
    paper = json.loads(evaluate(forked_at_hub, "takeover_paper_all"))
    sizes = {task: count["original"] for task, count in paper["n-samples"].items()}
    assert sizes == {
        "takeover_math500_100": 100, "takeover_gsm8k_100": 100, "takeover_amc23": 40, "takeover_olympiadbench_100": 100,
        "takeover_aime24": 30, "takeover_aime25": 30, "takeover_gpqa_diamond_50": 24,
    }  # fmt: skip
    assert paper["group_subtasks"]["takeover_paper"] == [task for task in sizes if "gpqa" not in task]
    assert paper["results"]["takeover_paper"]["acc,all"] == pytest.approx(7 / 8)
    assert paper["results"]["takeover_paper_all"]["acc,all"] == pytest.approx(7 / 8)
    for task, column, expected in read_table("drawn_problems"):  # the first five and the last, so that no version draws others
        found = [sample["doc"][column][:40] for sample in paper["samples"][task]]
        assert [*found[:5], found[-1]] == expected


def test_draws_do_not_depend_on_the_order_of_rows():
    rows = [{"problem": f"problem {number}", "answer": "1"} for number in range(300)]
    draw = benchmarks.draw_subset(lambda dataset: dataset, 100)
    ahead, back = (draw(datasets.Dataset.from_list(part)) for part in (rows, rows[::-1]))
    assert ahead["problem"] == back["problem"][::-1]
    assert len(set(ahead["problem"])) == 100
    assert ahead["problem"] != [row["problem"] for row in rows[:100]]


def test_every_gold_verifies_in_every_form_and_no_near_miss_does(forked_at_hub):
    done = forked_at_hub.run(ROOT / "benchmarks" / "gold_forms.py", "--show", cwd=ROOT)
    rows = [re.split(r"\|", line)[1:-1] for line in done.stdout.splitlines() if line.startswith("|")][2:]
    assert {f"takeover_{name}": int(golds) for name, golds, *_ in rows} == COUNTS
    for name, golds, forms, failed, misses, accepted in rows:
        assert (int(failed), int(accepted)) == (0, 0), f"{name}: {done.stdout}"
        assert int(forms) >= 5 * int(golds)
        assert int(misses) >= int(golds)


def test_gpqa_questions_are_withheld_from_logged_samples_on_request(forked_at_hub, everything):
    text = evaluate(forked_at_hub, "takeover_gpqa_diamond", '{"withhold_questions": true}')
    open_samples = everything["samples"]["takeover_gpqa_diamond"]
    logged = json.loads(text)
    assert logged["results"]["takeover_gpqa_diamond"]["acc,all"] == 7 / 8
    for sample in open_samples:
        assert sample["doc"]["problem"] in sample["arguments"][0][0]
        for secret in (sample["doc"]["problem"], *(choice for choice in sample["doc"]["choices"] if len(choice) > 12)):
            assert json.dumps(secret)[1:-1] not in text
    sample = logged["samples"]["takeover_gpqa_diamond"][0]
    assert sample["doc"]["canary"] == open_samples[0]["doc"]["canary"] != ""
    assert sample["filtered_resps"][0][0][0] in "ABCD"


@pytest.fixture
def gated(forked_at_hub, monkeypatch):
    """The hub refuses GPQA, as it does without access, and nothing of it is cached."""
    from serve_hub import Handler, HubError

    def refusing(plain):
        def answer(self, kind, name, *rest):
            if "gpqa" in name:
                raise HubError(403, "GatedRepo", f"Access to dataset {name} is restricted.")
            return plain(self, kind, name, *rest)

        return answer

    for name in ("api", "send_file"):
        monkeypatch.setattr(Handler, name, refusing(getattr(Handler, name)))
    for cached in [*Path(forked_at_hub.env["HF_HOME"]).glob("*/*Idavidrein*/")]:
        shutil.rmtree(cached)
    return forked_at_hub


def test_without_access_to_gpqa_one_line_says_how_to_get_it(gated):
    done = gated.run("lm_eval", "--model", "guided-takeover", "--tasks", "takeover_gpqa_diamond", status=2)
    assert "Traceback" not in done.stderr
    told = "takeover_gpqa_diamond needs the gated data set Idavidrein/gpqa: accept its terms"
    assert told in done.stderr.splitlines()[-1]


def test_without_access_to_gpqa_the_other_tasks_of_its_group_run(gated):
    done = gated.run(HELPERS / "scripted.py", "takeover_all", "null", "3", cwd=ROOT)
    assert "their group's averages leave it out" in done.stderr
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    assert "acc,all" not in results["takeover_gpqa_diamond"]
    assert results["takeover_all"]["acc,all"] == pytest.approx(7 / 8)


@pytest.mark.parametrize(("name", "row", "gold"), read_table("made_up_problems"))
def test_a_made_up_problem_in_the_columns_of_the_data_set_is_scored(name, row, gold, monkeypatch):
    """Without any data: where the stand-in for the hub is missing, this is what tests the benchmarks."""
    rows = datasets.Dataset.from_list([row, row])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: datasets.DatasetDict(train=rows, test=rows))
    task = load_named_tasks([name])[name]
    found = evaluator.evaluate(Scripted(), {"tasks": {name: task}, "groups": {}}, bootstrap_iters=0)
    assert [doc["answer"] for doc in task.test_docs()] == [gold] * 2
    results = found["results"][name]
    assert [results[f"{metric},all"] for metric in ("acc", "pass@8", "maj@8", "no_answer")] == [7 / 8, 1.0, 1.0, 1 / 8]


def test_every_task_is_in_the_readme_and_its_version_in_its_own_changelog():
    for path in TASK_CONFIGS.glob("*.yaml"):
        config, name = yaml.safe_load(path.read_text().replace("!function", "")), path.stem
        assert f"`{name}`" in (TASK_CONFIGS / "README.md").read_text()
        if (own := TASK_CONFIGS / name.removeprefix("takeover_") / "README.md").exists():
            assert str(config["metadata"]["version"]) in own.read_text().partition("### Changelog")[2], name


def test_the_package_is_cited_by_its_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == lm_eval_takeover.__version__
