"""Worlds that differ in one thing behind a name, a file or a function: no two of them share what says that they are the same."""

import json
import shutil
import sys

import pytest
import worlds
from helpers.demo_runs import evaluate_demo, run_demo
from lm_eval.api.instance import Instance
from safetensors.torch import load_file, save_file

from lm_eval_takeover.cli import main
from lm_eval_takeover.commands.rescore.scoring import write_results
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import CalibrationError, TakeoverError
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.results.files import read_runs
from lm_eval_takeover.runs.identity import collect_text_settings
from lm_eval_takeover.storage.digests import digest_of

PLUGIN = """\
from pathlib import Path
from lm_eval_takeover import register_score
import world_helper


@register_score("of_the_world", needs_donor=False)
def of_the_world(logits):
    return logits.amax(-1) * world_helper.SCALE
"""


def identify(**arguments):
    lm = GuidedTakeover(**{"tau": 1.5, "kappa": 0.0} | arguments)
    options = {"backend": "hf", "seed": 0, "trust_remote_code": lm.arguments.trust_remote_code}
    return digest_of(collect_text_settings(lm.pair, lm.policy, **options))


def scale(path, by=0.5):
    """All weights of a file times a number."""
    save_file({name: weight * by for name, weight in load_file(path).items()}, path, {"format": "pt"})


@pytest.fixture
def pair(tmp_path, small_pair):
    return {each.role: str(shutil.copytree(each.path, tmp_path / each.role)) for each in small_pair.members}


def split_weights(folder):
    """The weights in a sub-folder, as an index may name them."""
    weights = load_file(folder / "model.safetensors")
    (folder / "shards").mkdir()
    save_file(weights, folder / "shards" / "a.safetensors", {"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shards/a.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def save_adapter(base, folder, seed):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)


def test_weights_in_a_subfolder_count(pair, tmp_path):
    split_weights(tmp_path / "guide")
    before = identify(**pair)
    scale(tmp_path / "guide" / "shards" / "a.safetensors")
    assert identify(**pair) != before


def test_an_adapter_and_code_of_the_hub_count_by_their_commits(pair, tmp_path, monkeypatch):
    hub, commits = tmp_path / "hub", ("a" * 40, "b" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    for kind, name in (("adapter", "models--me--ad"), ("code", "models--me--code")):
        for number, commit in enumerate(commits):
            snapshot = hub / name / "snapshots" / commit
            snapshot.mkdir(parents=True)
            if kind == "adapter":
                save_adapter(pair["guide"], snapshot, number)
            else:
                (snapshot / "modeling.py").write_text(f"x = {number}\n")
        (hub / name / "refs").mkdir()

    def move(name, commit):
        (hub / name / "refs" / "main").write_text(commit)

    move("models--me--ad", commits[0])
    move("models--me--code", commits[0])
    monkeypatch.setattr("lm_eval_takeover.pair.ids.constants.HF_HUB_CACHE", str(hub))
    before = identify(**pair, guide_peft="me/ad")
    move("models--me--ad", commits[1])
    assert identify(**pair, guide_peft="me/ad") != before
    config = json.loads((tmp_path / "guide" / "config.json").read_text())
    (tmp_path / "guide" / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "me/code--modeling.Mine"}}))
    before = identify(**pair, trust_remote_code=True)
    move("models--me--code", commits[1])
    assert identify(**pair, trust_remote_code=True) != before


def test_a_calibration_of_an_adapter_is_none_of_the_one_in_its_place(pair, tmp_path):
    save_adapter(pair["guide"], tmp_path / "ad", 0)
    words = ["--base", pair["base"], "--guide", pair["guide"], "--model_args", f"guide_peft={tmp_path / 'ad'}"]
    words += ["--num_prompts", "4", "--num_held_out", "2", "--max_gen_toks", "8", "--out", str(tmp_path / "own.json")]
    assert main(["calibrate", "--prompts", str(DEMO["base"].parent / "calibration_prompts.jsonl"), *words]) == 0
    given = {**pair, "guide_peft": str(tmp_path / "ad"), "calibration": str(tmp_path / "own.json"), "spike_ratio": 0.1}
    GuidedTakeover(**given).close()
    shutil.rmtree(tmp_path / "ad")
    save_adapter(pair["guide"], tmp_path / "ad", 1)
    with pytest.raises(CalibrationError, match="was made for base="):
        GuidedTakeover(**given)


def test_helpers_of_a_plugin_count_and_are_run_again(pair, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "world_helper.py").write_text("SCALE = 1\n")
    given = {**pair, "plugins": str(tmp_path / "plugin.py"), "score": "of_the_world"}
    before = identify(**given)
    assert identify(**given) == before
    (tmp_path / "world_helper.py").write_text("SCALE = 22\n")
    assert identify(**given) != before
    assert sys.modules["world_helper"].SCALE == 22


def test_readers_refuse_weights_that_have_changed(pair, tmp_path, capsys):
    run_demo(tmp_path / "run", 2, {**pair, "policy": "base"}, gen_kwargs={"max_gen_toks": 8})
    scale(tmp_path / "guide" / "model.safetensors", 0.9)
    with pytest.raises(TakeoverError, match=r"guide='.*guide' is not what the run in '.*' wrote with"):
        main(["score", str(tmp_path / "run")])
    assert main(["score", str(tmp_path / "run"), "--allow", "weights"]) == 0
    assert main(["score", str(tmp_path / "run"), "--guide", pair["base"], "--name", "other"]) == 0  # asked for


JUDGE = """\
import sys
from pathlib import Path


def judge(doc, results):
    sys.path.insert(0, str(Path(__file__).parent / "lib"))
    import grade

    return {"acc": float(grade.read(results[0]))}
"""


def write_task(folder, answer):
    (folder / "lib").mkdir(parents=True)
    documents = ({"problem": f"{number} + 4 =", "answer": "7"} for number in range(4))
    (folder / "data.jsonl").write_text("".join(json.dumps(each) + "\n" for each in documents))
    (folder / "judged.yaml").write_text(worlds.TASK.format(task="judged", judge="utils.judge", data=folder / "data.jsonl"))
    (folder / "utils.py").write_text(JUDGE)
    (folder / "lib" / "grade.py").write_text(f"def read(text):\n    return {answer}\n")
    return folder


def test_a_grader_that_a_task_calls_counts_for_every_model(tmp_path, monkeypatch):
    folder, files = write_task(tmp_path / "tasks", 1), []
    for answer in (1, 0):
        (folder / "lib" / "grade.py").write_text(f"def read(text):\n    return {answer}\n")
        monkeypatch.setattr(sys, "path", list(sys.path))
        sys.modules.pop("grade", None)
        results = evaluate_demo("dummy", "", None, "judged", folder)
        files.append(write_results(results, tmp_path / f"out{answer}"))
    assert len(read_runs(files)[0]) == 2
    scorers = {
        json.loads(next(file.glob("results_*")).read_text())["configs"]["judged"]["metadata"]["scorer"] for file in files
    }
    assert len(scorers) == 2


def test_logs_of_other_models_are_told_apart_by_their_texts(tmp_path):
    from helpers.results import write_results as write_made_up

    for name, correct in (("one", [2, 8, 0]), ("other", [8, 8, 8]), ("same", [2, 8, 0])):
        write_made_up(tmp_path / name, {"plain": correct}, model="hf", model_args={"pretrained": "./out"})
    for second, rows in (("other", 2), ("same", 1)):
        assert len(read_runs([tmp_path / "one", tmp_path / second])[0]) == rows


def test_runs_are_joined_by_document(pair, tmp_path):
    from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders

    given = {**pair, "policy": "base"}
    for name, numbers in (("one", [1, 0]), ("other", [3, 2, 3])):
        results = run_demo(tmp_path / name, None, given, samples={"takeover_demo": numbers}, gen_kwargs={"max_gen_toks": 8})
        rows = results["samples"]["takeover_demo"]
        assert [row["doc_id"] for row in rows] == sorted(set(numbers))
        run = read_run_folder(tmp_path / name)
        problems = {row["doc_id"]: row["doc"]["problem"] for row in rows}
        assert {number: prompts[0]["problem"] for (_, number), prompts in run.prompts.items()} == problems
    runs = read_run_folders([tmp_path / "one", tmp_path / "other"])
    assert {one.doc_id for one in runs[0].answered}.isdisjoint(one.doc_id for one in runs[1].answered)
    runs[1].answered[:] = [one for one in runs[0].answered if one.doc_id == 0]  # as journals before had them: by place


def test_rolling_log_likelihoods_refuse_the_problems_of_a_calibration(monkeypatch):
    lm = GuidedTakeover()
    problem = json.loads((DEMO["base"].parent / "calibration_prompts.jsonl").read_text().splitlines()[0])
    document = {"problem": problem["prompt"], "answer": "1"}
    for kind, given in (("loglikelihood", (problem["prompt"], " 7")), ("loglikelihood_rolling", (problem["prompt"],))):
        instance = Instance(kind, document, given, 0, metadata=("t", 0, 1))
        with pytest.raises(CalibrationError, match="was measured on the problem"):
            getattr(lm, kind)([instance], disable_tqdm=True)


def test_no_worlds_that_differ_in_an_input_of_a_run_share_an_identity(small_pair, tmp_path, monkeypatch):
    """And what a run opens or asks for is in a digest, but for what `worlds.NAMED` says."""
    worlds.build(tmp_path, {member.role: member.path for member in small_pair.members})
    files, variables = worlds.trace(tmp_path)
    assert worlds.find_undigested(tmp_path, files, variables) == []
    monkeypatch.setenv("WORLD_LIMIT", "0")
    inputs = worlds.list_inputs(tmp_path, files)
    assert worlds.try_worlds(tmp_path, inputs, 20)[1] == []
    assert {"tasks/lib/words.txt", "further.py", "guide/shards/a.safetensors"} <= {*inputs}
