"""The keys of samples stay what they were, and runs of one process do not mix."""

import pytest
from helpers.tables import read_table
from lm_eval.api.instance import Instance
from transformers import AutoTokenizer

from lm_eval_takeover.demo import DEMO, problems
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.runs.run_reader import read_stored_runs
from lm_eval_takeover.storage.digests import digest_of, digest_of_text
from lm_eval_takeover.tasks.benchmarks import score_all
from lm_eval_takeover.tasks.verdicts import score_samples

written = AutoTokenizer.from_pretrained(DEMO["guide"]).backend_tokenizer.to_str()


@pytest.mark.skipif(
    digest_of_text(written).hex() != "0fc89c1a1d6b6ccd49ac30d2955e183e",
    reason="this version of tokenizers writes the demo's tokenizer in another form, which is in every key",
)
@pytest.mark.parametrize(("arguments", "settings", "identity", "of_task", "keys"), read_table("known_keys"))
def test_fixed_requests_have_the_keys_that_they_always_had(folder, arguments, settings, identity, of_task, keys):
    """And once they are answered, no weights are loaded for them."""
    document, prompt = {"problem": "How far?", "answer": "7"}, ("Problem: how far?", settings)
    asked, made = [Instance("generate_until", document, prompt, 0, metadata=("t", 0, 2))] * 2, []
    for is_loaded in (True, False):
        lm = GuidedTakeover(run_dir=str(folder), **arguments)
        texts, told = lm.generate_until(asked, disable_tqdm=True), lm.get_model_info()["takeover"]
        made.append((texts, {name: value for name, value in told.items() if name not in ("seconds", "attempts")}))
        assert (lm.pair.guide.loaded_dtype is not None) == is_loaded
        rows = lm.run.journal.asked(lm.run.command)
        lm.close()
    assert made[0] == made[1]
    assert (told["identity"], told["per_task"]["t"]["identity"]) == (identity, of_task)
    assert [row.key.hex() for row in rows] == keys


def test_the_time_of_a_command_that_takes_samples_of_another_is_not_known(tmp_path):
    settings = {"max_gen_toks": 5, "until": []}
    asked = [
        Instance("generate_until", {"problem": text}, (text, settings), i, metadata=("t", i, 1)) for i, text in enumerate("ab")
    ]
    told = []
    for instances in (asked[:1], asked[:1], asked, asked):  # the second and the last call write nothing
        lm = GuidedTakeover(policy="base", run_dir=str(tmp_path))
        for _ in range(2):  # one object may serve several evaluations
            lm.generate_until(instances, disable_tqdm=True)
        told.append(lm.get_model_info()["takeover"]["seconds"])
        lm.close()
    assert told[0] == told[1] > 0 and told[2:] == [None, None]
    assert [run.seconds is None for run in read_stored_runs(tmp_path)] == [False, True]


def test_models_of_one_process_that_take_turns_keep_their_texts_and_verdicts_apart(tmp_path):
    """With other seeds, folders and texts that end the thinking; behind a full stop there is no answer."""
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 200, "until": []}
    models = {
        end: GuidedTakeover(policy="guide", seed=ord(end), think_end_token=end, run_dir=str(tmp_path / end)) for end in ".S"
    }
    expected = {end: {} for end in models}
    for document in problems()[:2]:
        instance = Instance("generate_until", document, (document["problem"], settings), 0, metadata=("t", 0, 2))
        texts = {end: lm.generate_until([instance] * 2, disable_tqdm=True) for end, lm in models.items()}
        for end, responses in texts.items():
            samples, _ = score_samples(document["answer"], responses, think_end=end)
            assert score_all([responses], [document]) == [[[sample.answer or "", sample.outcome] for sample in samples]]
            for text, sample in zip(responses, samples, strict=True):
                expected[end][digest_of(document), digest_of_text(text)] = sample.answer, sample.outcome
    for end, lm in models.items():
        assert lm.run.journal.verdicts() == expected[end]
        assert {answer is None for answer, _ in expected[end].values()} == {end == "."}
        assert lm.get_model_info()["takeover"]["samples"] == 4
        lm.close()
