"""A calibration is measured anew exactly if something changed that can change its content; other settings in one folder."""

import json
import shutil

import worlds
from helpers.stock import comparing_here

from lm_eval_takeover import model
from lm_eval_takeover.backends import open_backend
from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.compare.calls import plan_calibration, plan_rows, read_workload
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.results.files import read_run
from lm_eval_takeover.runs.run_reader import read_run_folder

CODE = {
    "judging.py": "from words import RIGHT\n\n\ndef judge(doc, results):\n    return {'acc': float(results[0] == RIGHT)}\n",
    "words.py": "RIGHT = '7'\n",
}
PLUGIN = """\
from lm_eval_takeover import register_score


@register_score("mine", needs_donor=False)
def mine(logits):
    return logits.amax(-1)
"""


def edit(path):
    """One byte more or another one, as long as it stays readable."""
    if path.suffix == ".safetensors":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    elif path.suffix == ".jsonl":
        path.write_text(path.read_text().replace("7", "8"))
    elif path.suffix == ".yaml":
        path.write_text(path.read_text().replace("max_gen_toks: 4", "max_gen_toks: 5"))
    else:
        path.write_text(path.read_text() + (" \n" if path.suffix == ".json" else "\n# changed\n"))


def test_every_file_that_a_calibration_reads_makes_it_anew_and_no_other(ask, tmp_path, monkeypatch):
    for role in DEMO:
        shutil.copytree(DEMO[role], tmp_path / role)
    data, tasks, score, prompts = (tmp_path / name for name in ("data.jsonl", "tasks", "score.py", "prompts.jsonl"))
    tasks.mkdir()
    for file in (data, prompts):
        file.write_text(json.dumps({"problem": "3 + 4 =", "answer": "7"}) + "\n")
    score.write_text(PLUGIN)
    for name, code in {**CODE, "mine.yaml": worlds.TASK.format(task="mine", judge="judging.judge", data=data)}.items():
        (tasks / name).write_text(code)
    monkeypatch.syspath_prepend(tasks)
    words = ["--tasks", "mine", "--include_path", str(tasks), "--prompts", str(prompts), "--plugins", str(score)]
    words += [word for role in DEMO for word in (f"--{role}", str(tmp_path / role))]

    def name(*more):
        asked = ask(*words, "--rows", "guided,mine", *more)
        return plan_calibration(asked, plan_rows(asked), read_workload(asked)).calibration

    before = name()
    (tmp_path / "base" / ".hidden").write_text("not read")
    (tasks / "notes.txt").write_text("not read")
    edit(data)  # the problems of the task are none of a calibration
    assert name() == name("--rates", "0.2,0.3") == before
    for path in (
        tmp_path / "base" / "model.safetensors",
        tmp_path / "guide" / "tokenizer.json",
        score,
        prompts,
        *(tasks / file for file in (*CODE, "mine.yaml")),
    ):
        edit(path)
        assert name() != before, path
        before = name()
    for more in (
        ["--direction", "reverse"],
        ["--gen_kwargs", "temperature=0.1"],
    ):
        assert name(*more) != before, more


def test_another_rate_in_one_folder_is_the_row_and_the_samples_of_both_stay(tmp_path, monkeypatch):
    """Nothing is loaded where nothing is missing."""
    loaded = []
    monkeypatch.setattr(model, "open_backend", lambda *given: loaded.append(given) or open_backend(*given))
    words = ["compare", "--tasks", "takeover_demo", "--limit", "1", "--gen_kwargs", "max_gen_toks=8", "--rows", "guided"]
    with comparing_here():
        for rate in (0.05, 0.02, 0.05):
            assert main([*words, "--target_rate", str(rate), "--run_dir", str(tmp_path), "--quiet"]) == 0
            (row,) = json.loads((tmp_path / "rows.json").read_text())
            takeover = read_run(*(tmp_path / row["results"][0]).glob("results_*.json")).takeover
            identities = {task: own["identity"] for task, own in takeover["per_task"].items()}
            assert read_run_folder(tmp_path / "guided").takeover["target_rate"] == rate
            assert (takeover["target_rate"], json.loads((tmp_path / "guided" / "row.json").read_text())) == (rate, identities)
    assert takeover["attempts"] == 2 and len(loaded) == 2  # the last one found all that the first one wrote
    assert takeover["parameters"].keys() == takeover["dtypes"].keys() == {"base", "guide"}
