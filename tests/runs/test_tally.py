"""What its token limit cut off: known exactly to a run, to one that goes on from a run_dir, and to rescore."""

import pytest
from lm_eval.api.instance import Instance

from lm_eval_takeover.demo import problems
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs.run_reader import read_stored_runs


def answer(limit, prompts=1, **arguments):
    """`(responses, config.takeover)` of greedy texts of at most so many tokens."""
    settings = {"until": [], "do_sample": False, "max_gen_toks": limit}
    lm = GuidedTakeover(policy="base", batch_size=4, **arguments)
    asked = [
        Instance("generate_until", doc, (f"Problem: {doc['problem']}\nSolution:", settings), 0, metadata=("demo", i, 1))
        for i, doc in enumerate(problems()[:prompts])
    ]
    found = lm.generate_until(asked, disable_tqdm=True)
    info = lm.get_model_info()["takeover"]
    lm.close()
    return found, info


@pytest.fixture(scope="module")
def whole():
    """A text that ends by itself, and how many tokens it has, its end token included."""
    (text,), info = answer(320)
    assert (text.truncated, info["truncated"]) == (False, 0.0)
    return text, info["tokens"]


def test_an_end_token_at_the_very_limit_is_no_cut(whole):
    text, tokens = whole
    (same,), info = answer(tokens)
    assert (same, same.truncated, info["truncated"]) == (text, False, 0.0)
    (shorter,), info = answer(tokens - 1)
    assert (shorter, shorter.truncated, info["truncated"]) == (text, True, 1.0)  # all of it but the end token


def test_the_share_is_reported_per_task_and_kept_in_a_run_dir(whole, tmp_path):
    limit = whole[1]
    texts, first = answer(limit, prompts=6, run_dir=str(tmp_path))
    cut = [text.truncated for text in texts]
    assert 0 < sum(cut) < 6
    assert first["truncated"] == first["per_task"]["demo"]["truncated"] == sum(cut) / 6
    assert first["samples"] == 6
    again, second = answer(limit, prompts=6, run_dir=str(tmp_path))
    assert ([text.truncated for text in again], second["per_task"]) == (cut, first["per_task"])
    (run,), _ = read_stored_runs(tmp_path)
    assert sorted(sample.response.truncated for sample in run.samples.values()) == sorted(cut)
