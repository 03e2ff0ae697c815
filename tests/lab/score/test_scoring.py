"""Both models along stored samples: what is written, resumed and refused."""

import os
import shutil

import polars as pl
import pytest
from helpers.pairs import edit, look_before_passes
from helpers.run_dirs import copy_few, plant_facts, query

from lm_eval_takeover.cli import main
from lm_eval_takeover.demo import DEMO
from lm_eval_takeover.errors import ArgumentError, RunDirError, VocabularyError
from lm_eval_takeover.lab.score import scoring
from lm_eval_takeover.lab.score.scoring import restore_arguments
from lm_eval_takeover.method.registry import scores as registered
from lm_eval_takeover.pair.member import Member
from lm_eval_takeover.pair.pair import Pair
from lm_eval_takeover.runs.evidence import column_of, list_score_columns
from lm_eval_takeover.runs.run_reader import read_run_folder
from lm_eval_takeover.storage.files import Lock

NAME = ["task", "doc_id", "sample", "position"]


def read(folder, kind):
    frame = pl.concat(pl.read_parquet(path) for path in sorted((folder / kind).glob("*.parquet")))
    return frame.with_columns(pl.col("task").cast(pl.String)).sort(NAME)


def test_scores_stand_beside_every_token_of_the_traces(demo_runs):
    scores, traces = (read(demo_runs["guided"], kind) for kind in ("scores", "traces"))
    assert scores.columns == [*NAME, *list_score_columns(registered.names())]
    assert {column_of(name) for name in registered.names()} <= set(scores.columns)
    assert scores.select(*NAME, "token_id").equals(traces.select(*NAME, "token_id"))
    # What the gate saw while the text was written.
    assert (scores["ce"] - traces["score"]).abs().max() < 1e-3
    assert (scores["base_logprob"] - traces["host_logprob"]).abs().max() < 2e-3
    assert (scores["base_rank"] == traces["donor_rank"]).mean() > 0.999
    run = read_run_folder(demo_runs["guided"])
    assert len([*run.read_scores([], run.answered)]) == 32
    for key, header, found in run.read_scores(["ce", "base_top"], run.answered):
        assert list(header.scores) == registered.names()
        (one,) = (one for one in run.answered if one.stored.key == key)
        own = scores.filter(doc_id=one.doc_id, sample=one.sample)
        assert all(own[name].to_list() == values.tolist() for name, values in found.items())


def test_a_call_goes_on_where_one_was_stopped(demo_runs, tmp_path, monkeypatch):
    run = copy_few(demo_runs["base"], tmp_path / "base", problems=4)
    batches = []

    def look(role, ids, reads_prompt):
        if role == "base" and len(ids) == 8:  # not a check of the model
            batches.append(len(ids))
            if len(batches) == 3:
                raise KeyboardInterrupt

    look_before_passes(monkeypatch, look)
    assert main(["score", str(run), "--batch_size", "8"]) == 130
    assert read(run, "scores").select("doc_id", "sample").n_unique() == 16
    assert main(["score", str(run), "--batch_size", "8"]) == 0
    assert batches == [8] * 5
    assert len(read(run, "scores")) == len(read(run, "traces"))


def test_a_folder_that_is_moved_meanwhile_is_not_made_again(demo_runs, tmp_path, monkeypatch):
    run, moved = copy_few(demo_runs["base"], tmp_path / "base", problems=1), tmp_path / "moved"
    look_before_passes(monkeypatch, lambda *_: run.exists() and run.rename(moved))
    with pytest.raises(RunDirError, match=r"base' was moved or removed while a command wrote to it; .* new place"):
        main(["score", str(run)])
    assert not run.exists() and main(["score", str(moved)]) == 0


def test_files_are_written_from_the_journal_whatever_was_in_their_place(demo_runs, tmp_path):
    run = shutil.copytree(demo_runs["base"], tmp_path / "base")
    (file,), (other,) = ((folder / "scores").iterdir() for folder in (run, demo_runs["guided"]))
    content = file.read_bytes()
    for changed in (b"", content[:-9], content.replace(b"x", b"y", 1), other.read_bytes()):
        file.write_bytes(changed)
        file.with_name("000007.parquet").write_bytes(changed)
        assert main(["score", str(run)]) == 0
        assert [(path.name, path.read_bytes()) for path in (run / "scores").iterdir()] == [(file.name, content)]


def test_scores_that_have_changed_are_never_read_and_are_scored_again(demo_runs, tmp_path):
    run = shutil.copytree(demo_runs["base"], tmp_path / "base")
    held = read(run, "scores")
    for key, content in query(run, "SELECT key, content FROM evidence WHERE kind = 'score' LIMIT 3"):
        query(run, "UPDATE evidence SET content = ? WHERE kind = 'score' AND key = ?", (content[:-1] + b"?", key))
    reader = read_run_folder(run)
    with pytest.raises(RunDirError, match="a score has changed; `lm-eval-takeover score` repairs it"):
        list(reader.read_scores(["ce"], reader.answered))
    assert main(["score", str(run)]) == 0
    scores = pl.selectors.float()
    assert read(run, "scores").drop(scores).equals(held.drop(scores))
    assert len(list(reader.read_scores(["ce"], reader.answered))) == 32


def test_other_models_and_other_tokens_are_refused(demo_runs, tmp_path, random_pair):
    run = shutil.copytree(demo_runs["base"], tmp_path / "base")
    at_work = Lock(run / "journal-000.lock")
    with pytest.raises(RunDirError, match=rf"is in use by process {os.getpid()} on \S+; wait, or give another"):
        main(["score", str(run)])
    at_work.release()
    guide = ["--guide", str(random_pair["guide"]), "--base", str(random_pair["base"])]
    with pytest.raises(RunDirError, match=r"was scored with base=demo-base .* give --overwrite"):
        main(["score", str(run), *guide])
    assert main(["score", str(run), *guide, "--overwrite"]) == 0
    with pytest.raises(ArgumentError, match="neither auto nor a number"):
        main(["score", str(run), "--batch_size", "0"])
    found = read_run_folder(run)
    texts = scoring.read_texts(found, found.stored_samples())
    shifted = [scoring.UnscoredSample(one.sample, tuple(token + 1 for token in one.prompt), one.tokens) for one in texts]
    pair = Pair(Member("base", str(DEMO["base"])), None)
    with pytest.raises(VocabularyError, match="a different tokenizer"):
        scoring.check_tokenizer(found, pair, shifted)
    with pytest.raises(VocabularyError, match=f"outside the {pair.vocab_size} that base and guide share"):
        scoring.check_tokenizer(found, pair, [scoring.UnscoredSample(texts[0].sample, texts[0].prompt, [pair.vocab_size])])
    held = read(run, "scores")
    query(run, "DELETE FROM evidence WHERE kind = 'trace' AND rowid > 5")
    with pytest.raises(RunDirError, match=r"the trace of task .* is missing; the run's own command repairs it"):
        main(["score", str(run), "--overwrite"])
    assert read(run, "scores").equals(held)


def test_a_stranger_s_folder_names_models_and_runs_no_code(demo_runs, tmp_path, random_pair, caplog, monkeypatch):
    """The folder names a model whose own code is asked for by `trust_remote_code`, and what says where weights go."""
    run, evil = shutil.copytree(demo_runs["base"], tmp_path / "base"), shutil.copytree(random_pair["base"], tmp_path / "evil")
    classes = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": [None, "evil.Tokenizer"]}
    edit(evil / "config.json", lambda config: config.update(auto_map=classes, model_type="evil"))
    (evil / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    changed = {"trust_remote_code": True, "device_map": "auto", "guide_device": "meta"}
    plant_facts(run, arguments=changed | {"base": str(evil), "guide": str(evil)})
    with pytest.raises(ArgumentError, match="contains custom code which must be executed"):
        main(["score", str(run)])
    assert f"loading base={evil} and guide={evil}, without remote code" in caplog.text
    read_run_folder(run).load_tokenizer()
    assert not (tmp_path / "ran").exists()
    given = {"base": "one", "guide": "other", "trust_remote_code": True}
    arguments = restore_arguments(read_run_folder(run), given)  # what the command line says counts
    assert (arguments.trust_remote_code, arguments.device_map, arguments.guide_device) == (True, None, None)
    plant_facts(run, arguments={"guide_peft": "their/adapter", "base": "x", "guide": "y"})
    with pytest.raises(ArgumentError, match=r"guide_peft=their/adapter, which is not taken .* give --model_args guide_peft="):
        main(["score", str(run)])
    assert restore_arguments(read_run_folder(run), {"guide_peft": "mine"}).guide_peft == "mine"
