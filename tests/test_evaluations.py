"""Whole evaluations in one process: seeds, one model used twice, the run's name and cost, what a resumed run says."""

import logging
import re
import sys
from copy import deepcopy

import pytest
from lm_eval import simple_evaluate
from lm_eval.api.task import ConfigurableTask
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.model import GuidedTakeover
from lm_eval_takeover.storage.paths import make_component
from lm_eval_takeover.tasks.benchmarks import load_demo

TASK = {
    "task": "puzzles",
    "custom_dataset": load_demo,
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{problem}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"do_sample": True, "temperature": 0.6, "max_gen_toks": 24, "until": []},
    "repeats": 8,
    "metric_list": [{"metric": "exact_match"}],
}


@pytest.fixture(scope="module")
def evaluate():
    """Two problems, 8 samples each of 24 tokens; without our own verification, whose processes take seconds."""
    tasks = TaskManager(include_defaults=False)

    def run(model="guided-takeover", **options):
        settings = {"limit": 2, "bootstrap_iters": 0, "task_manager": tasks}
        return simple_evaluate(model=model, tasks=[ConfigurableTask(config=deepcopy(TASK))], **(settings | options))

    return run


def texts(results):
    return [sample["resps"] for sample in results["samples"]["puzzles"]]


def test_a_model_that_is_used_twice_reports_each_evaluation_and_takes_its_seed(evaluate, tmp_path):
    lm = GuidedTakeover(policy="base", batch_size=16, run_dir=str(tmp_path))
    first, second, again = (evaluate(lm, torch_random_seed=seed) for seed in (1234, 5, 1234))
    reports = [one["config"]["takeover"] for one in (first, second, again)]
    assert [report["seed"] for report in reports] == [0, 5, 0]
    assert reports[2]["tokens"] == reports[0]["tokens"]
    assert 0 < reports[1]["tokens"] <= 2 * 8 * 24
    assert texts(first) == texts(again) != texts(second)
    assert lm.get_model_info()["takeover"]["tokens"] == reports[2]["tokens"]  # asked once more, it says the same
    lm.close()


def test_a_length_of_the_command_line_goes_before_the_task_files(evaluate):
    takeover = evaluate(model_args={"policy": "base", "batch_size": 16}, gen_kwargs="max_new_tokens=3")["config"]["takeover"]
    assert takeover["tokens"] <= 2 * 8 * 3


def test_what_the_command_refuses_is_refused_in_python(evaluate, tmp_path):
    with pytest.raises(ArgumentError, match=r"--use_cache '.*_rank0.db': lm-eval's cache knows prompts and no models"):
        evaluate(model_args={"policy": "base"}, gen_kwargs="do_sample=False", use_cache=str(tmp_path / "greedy"))
    with pytest.raises(ArgumentError, match=r"--apply_chat_template 'nosuch' is no template of the tokenizer of '.*'; it"):
        evaluate(model_args={"policy": "base"}, apply_chat_template="nosuch")
    with pytest.raises(ArgumentError, match="enable_thinking=False is read with --apply_chat_template; give both or none"):
        evaluate(model_args={"policy": "base", "enable_thinking": False})


def test_a_run_has_a_label_that_names_its_folder_and_its_cost(evaluate, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="lm_eval")
    tracker, label = EvaluationTracker(output_path=str(tmp_path)), "cheap/first try"
    arguments = {"policy": "random", "rate": 0.5, "batch_size": "auto", "max_batch_size": 7, "model": label}
    results = evaluate(model_args=arguments, evaluation_tracker=tracker)
    takeover = results["config"]["takeover"]
    assert takeover["label"] == label
    messages = [record.message for record in caplog.records if record.name.startswith("lm_eval_takeover")]
    assert re.search(r"^batch_size=auto: 7 samples of up to \d+ tokens at a time$", "\n".join(messages), re.MULTILINE)
    assert results["config"]["batch_sizes"] == [7]  # which lm-eval prints above its table
    tracker.save_results_aggregated(results=results, samples=results["samples"])
    (folder,) = tmp_path.iterdir()
    assert folder.name == make_component(label)
    assert [file.name[:8] for file in folder.iterdir()] == ["results_"]


def test_a_run_that_misses_its_rate_says_so_at_its_end_and_in_what_it_differs(evaluate, caplog):
    """In texts that end at the first decision, and in another template."""
    takeover = evaluate(GuidedTakeover(target_rate=0.05, batch_size=16), limit=3, gen_kwargs="top_p=0.95")
    takeover = takeover["config"]["takeover"]
    differences = "its prompts are in another template; its texts are shorter (24 tokens, 168 there)"
    rate = takeover["realized_rate"]
    assert abs(rate - 0.05) > 0.01 and "; ".join(takeover["differs_from_calibration"]) == differences
    line = f"{takeover['label']}: 5.0% of the tokens were asked for, and {rate:.1%} were taken over"
    scores = f"mean score {takeover['mean_score']:.3g} nats, {takeover['spike_share']:.1%} above tau"
    assert f"{line}; {scores}; against its calibration 'demo': {differences}" in caplog.text


def test_a_resumed_run_says_what_it_has_on_a_line_of_its_own_before_the_bar(evaluate, tmp_path, capsys):
    arguments = {"policy": "base", "batch_size": 16, "run_dir": str(tmp_path)}
    evaluate(model_args=arguments, limit=1)
    capsys.readouterr()
    handler, ours = logging.StreamHandler(sys.stderr), logging.getLogger("lm_eval_takeover")
    ours.addHandler(handler)
    try:
        evaluate(model_args=arguments, limit=3)
    finally:
        ours.removeHandler(handler)
    said = capsys.readouterr().err
    notice = f"run_dir='{tmp_path}': 8 of 24 samples are finished already; 16 are left to write\n"
    before, _, after = said.partition(notice)
    assert before == "" or before.endswith("\n")
    bar = after.split("Running generate_until requests:")
    assert "8/24" in bar[1]
    assert "24/24" in bar[-1] and "8 samples from before" in bar[-1]
    GuidedTakeover(**arguments).close()
