"""Worlds that differ in one thing behind a name, a file or a function: no two of them share what says that they are the same."""

import shutil

import pytest
import worlds
from helpers.demo_runs import run_demo
from helpers.pairs import edit, save_adapter
from safetensors.torch import load_file, save_file

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import CALIBRATION_PROMPTS
from lm_eval_takeover.errors import CalibrationError, TakeoverError
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs.run_reader import read_run_folder, read_run_folders


def identify(**arguments):
    return GuidedTakeover(tau=1.5, kappa=0.0, **arguments).get_model_info()["takeover"]["identity"]


@pytest.fixture
def pair(tmp_path, small_pair):
    return {each.role: str(shutil.copytree(each.path, tmp_path / each.role)) for each in small_pair.members}


def test_an_adapter_and_code_of_the_hub_count_by_their_commits(pair, tmp_path, monkeypatch):
    hub, commits = tmp_path / "hub", ("a" * 40, "b" * 40)
    for constants in ("huggingface_hub.constants", "lm_eval_takeover.pair.ids.constants"):
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(hub))
    for number, commit in enumerate(commits):
        save_adapter(pair["guide"], hub / "models--me--ad" / "snapshots" / commit, number)
        (code := hub / "models--me--code" / "snapshots" / commit).mkdir(parents=True)
        (code / "modeling.py").write_text(f"x = {number}\n")
    edit(tmp_path / "guide" / "config.json", lambda config: config.update(auto_map={"AutoModel": "me/code--modeling.Mine"}))
    for name, given in (("ad", {"guide_peft": "me/ad"}), ("code", {"trust_remote_code": True})):
        (ref := hub / f"models--me--{name}" / "refs" / "main").parent.mkdir()
        found = []
        for commit in commits:
            ref.write_text(commit)
            found.append(identify(**pair, **given))
        assert found[0] != found[1], name


def test_a_calibration_of_an_adapter_is_none_of_the_one_in_its_place(pair, tmp_path):
    save_adapter(pair["guide"], tmp_path / "ad", 0)
    words = ["--base", pair["base"], "--guide", pair["guide"], "--model_args", f"guide_peft={tmp_path / 'ad'}"]
    words += ["--num_prompts", "4", "--num_held_out", "2", "--max_gen_toks", "8", "--out", str(tmp_path / "own.json")]
    assert main(["calibrate", "--prompts", str(CALIBRATION_PROMPTS), *words]) == 0
    given = {**pair, "guide_peft": str(tmp_path / "ad"), "calibration": str(tmp_path / "own.json"), "spike_ratio": 0.1}
    GuidedTakeover(**given).close()
    shutil.rmtree(tmp_path / "ad")
    save_adapter(pair["guide"], tmp_path / "ad", 1)
    with pytest.raises(CalibrationError, match="was made for base="):
        GuidedTakeover(**given)


def test_readers_refuse_weights_that_have_changed(pair, tmp_path, capsys):
    run_demo(tmp_path / "run", 2, {**pair, "policy": "base"}, gen_kwargs={"max_gen_toks": 8})
    path = tmp_path / "guide" / "model.safetensors"
    save_file({name: 0.9 * weight for name, weight in load_file(path).items()}, path, {"format": "pt"})
    with pytest.raises(TakeoverError, match=r"guide='.*guide' is not what the run in '.*' wrote with"):
        main(["score", str(tmp_path / "run")])
    assert main(["score", str(tmp_path / "run"), "--allow", "weights"]) == 0
    assert main(["score", str(tmp_path / "run"), "--guide", pair["base"], "--overwrite"]) == 0  # asked for


def test_runs_are_joined_by_document(pair, tmp_path):
    given = {**pair, "policy": "base"}
    for name, numbers in (("one", [1, 0]), ("other", [3, 2, 3])):
        results = run_demo(tmp_path / name, None, given, samples={"takeover_demo": numbers}, gen_kwargs={"max_gen_toks": 8})
        rows = results["samples"]["takeover_demo"]
        assert [row["doc_id"] for row in rows] == sorted(set(numbers))
        run = read_run_folder(tmp_path / name)
        problems = {row["doc_id"]: row["doc"]["problem"] for row in rows}
        assert {one.doc_id: run.find_prompt(one)["problem"] for one in run.answered} == problems
    runs = read_run_folders([tmp_path / "one", tmp_path / "other"])
    assert {one.doc_id for one in runs[0].answered}.isdisjoint(one.doc_id for one in runs[1].answered)


def test_a_run_says_if_a_plug_in_asks_for_a_variable_when_it_is_called(tmp_path, monkeypatch, caplog):
    (plugin := tmp_path / "late.py").write_text(
        "import os\nfrom lm_eval_takeover import register_score\n"
        "@register_score('test_late', needs_donor=False)\n"
        "def late(host_logits):\n    return host_logits.std(-1) * float(os.environ[f\"SCALE_{'OF_SCORE'}\"])\n"
    )
    monkeypatch.setenv("SCALE_OF_SCORE", "2")
    given = {"plugins": str(plugin), "score": "test_late", "tau": 1, "kappa": 0}
    runs = [run_demo(tmp_path / name, 1, given, gen_kwargs={"max_gen_toks": 2}) for name in ("one", "other")]
    assert len({run["config"]["takeover"]["identity"] for run in runs}) == 1
    said = [record for record in caplog.records if "late.py reads a file or variable" in record.getMessage()]
    assert len(said) == 2


def test_no_worlds_that_differ_in_an_input_of_a_run_share_an_identity(small_pair, tmp_path, monkeypatch):
    """And what a run opens or asks for is in a digest, but for what `worlds.NAMED` says."""
    worlds.build(tmp_path, {member.role: member.path for member in small_pair.members})
    traced = worlds.trace(tmp_path)
    for name in worlds.ASKED:
        monkeypatch.setenv(name, "0")
    worlds.identify(tmp_path)
    assert worlds.find_undigested(tmp_path, traced["files"], traced["variables"]) == []
    inputs = worlds.list_inputs(tmp_path, traced["files"])
    assert worlds.try_worlds(tmp_path, inputs, 20)[1] == []
    assert {"tasks/lib/words.txt", "tasks/.hidden/.words.txt", "further.py", "guide/shards/a.safetensors"} <= {*inputs}
