"""Tasks of several samples, what their requests ask, and which texts are problems of a benchmark."""

import json
import math
from itertools import combinations, product

import datasets
import pytest
from helpers.demo_runs import write_task
from helpers.one_line import one_line
from helpers.pairs import ROOT
from helpers.processes import run_code
from helpers.scripted import Scripted
from lm_eval.evaluator import evaluate

from lm_eval_takeover.demo import calibration_prompts, problems
from lm_eval_takeover.errors import ArgumentError, CalibrationError, TakeoverError
from lm_eval_takeover.method.request import Sampling
from lm_eval_takeover.samples import Response, pass_at_k
from lm_eval_takeover.tasks.instances import LENGTHS, cut_to_context, read_generation_settings
from lm_eval_takeover.tasks.known_problems import DIGESTS, problem_digest, refuse_calibrated_tasks, words
from lm_eval_takeover.tasks.sampled import SampledTask, load_named_tasks
from lm_eval_takeover.tasks.verdicts import list_metrics, score_samples

ROWS = [{"problem": "What is 2+2?", "answer": "4"}, {"problem": "What is 1/3?", "answer": "1/3"}]
BOXED = [r"So \boxed{4}", r"So \boxed{1/3}"]


def make_task(rows=ROWS, kind=SampledTask, **config):
    given = {
        "task": "own",
        "doc_to_text": "Problem: {{problem}}\nSolution:",
        "generation_kwargs": {"until": ["\nProblem:", "END"]},
        "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
    }
    return kind(config=given | config)


class Model(Scripted):
    """Answers the j-th sample of a document by `reply(doc_id, j)`; keeps what it was asked."""

    def __init__(self, reply):
        super().__init__()
        self.reply, self.requests = reply, []

    def _reply(self, request):
        self.requests.append(request)
        sample = self.asked[id(request)] = self.asked.get(id(request), -1) + 1
        return self.reply(request.doc_id, sample)

    def apply_chat_template(self, history, add_generation_prompt=True):
        return f"<user>{history[-1]['content']}<assistant>"

    tokenizer_name = "none"


def score(task, reply, **options):
    model = Model(reply)
    found = evaluate(model, {"tasks": {"own": task}, "groups": {}}, bootstrap_iters=0, **options)
    return found["results"]["own"], found["samples"]["own"], model


@pytest.mark.parametrize(("samples", "ks"), [(1, [1]), (6, [1, 2, 4, 6])])
def test_any_number_of_samples_has_the_metrics_that_fit(samples, ks):
    task = make_task(repeats=samples)
    results, logged, _ = score(task, lambda doc, sample: BOXED[doc] if sample == 0 else "I cannot tell")
    assert results["acc,all"] == pytest.approx(1 / samples)
    names = {key.partition(",")[0] for key in results if key.endswith(",all") and "_stderr" not in key}
    assert names == {entry["metric"] for entry in list_metrics(samples)}
    assert {key for key in results if key.startswith("pass@") and "stderr" not in key} == {f"pass@{k},all" for k in ks}
    assert {k: results[f"pass@{k},all"] for k in ks} == pytest.approx({k: k / samples for k in ks})
    assert results[f"maj@{samples},all"] == 1.0
    assert [len(row["filtered_resps"][0]) for row in logged] == [samples] * 2


def test_metrics_can_be_chosen_and_an_answer_may_be_a_number_with_a_tolerance():
    rows = [{"problem": "2+2?", "answer": 4.0, "tolerance": None}, {"problem": "1/3?", "answer": 0.33, "tolerance": 0.01}]
    task = make_task(rows, repeats=4, metric_list=[{"metric": "acc"}, {"metric": "acc_completed"}])
    results, _, _ = score(task, lambda doc, sample: BOXED[doc])
    assert results["acc,all"] == 1.0
    assert {key for key in results if key.endswith(",all") and "stderr" not in key} == {"acc,all", "acc_completed,all"}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 16384}),
        ({"max_new_tokens": 9}, {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_new_tokens": 9}),
        ({"temperature": 0, "max_gen_toks": 9}, {"temperature": 0, "max_gen_toks": 9}),
    ],
)
def test_decoding_that_a_task_file_leaves_out_is_the_papers(given, found):
    assert make_task(generation_kwargs=given).config.generation_kwargs == {"until": [], **found}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"rows": [{"question": "q", "answer": "1"}]}, "task own, doc 0: expected field 'problem', found question, ans"),
        ({"rows": [{"problem": "q", "gold": "1"}]}, "expected field 'answer', found problem, gold"),
        ({"rows": [*ROWS, {"problem": "q", "answer": None}]}, "doc 2: expected field 'answer', found problem; rename"),
        ({"rows": [{"problem": "q", "answer": " "}]}, "answer=' ' is neither"),
        ({"rows": [{"problem": "q", "answer": True}]}, "answer=True is neither"),
        ({"rows": [{"problem": 7, "answer": "1"}]}, "problem=7 is not a text"),
        ({"rows": [{"problem": "q", "answer": "1", "tolerance": -0.1}]}, "tolerance=-0.1 is not a number of at least 0"),
        ({"rows": [{"problem": "q", "answer": "1", "tolerance": "1e-3"}]}, "tolerance='1e-3' is not a number"),
        ({"test_split": "train"}, "test_split='train' is none of test"),
        ({"repeats": 0}, "repeats=0 is not a whole number of at least 1"),
        ({"repeats": "eight"}, "repeats='eight'"),
        ({"filter_list": [{"name": "last", "filter": [{"function": "take_first"}]}]}, "filter_list is not taken"),
        ({"repeats": 4, "metric_list": [{"metric": "pass@8"}]}, "metric 'pass@8' cannot be computed from 4 samples"),
    ],
)  # fmt: skip
def test_what_could_not_be_scored_is_refused_when_the_task_is_loaded(config, text):
    rows = config.pop("rows", ROWS)
    with one_line(ArgumentError, text):
        make_task(rows, **config)


def test_a_row_without_an_answer_is_named_by_its_line_and_what_stands_there(tmp_path):
    rows = [{"problem": "q", "answer": "1"}, {"problem": "r", "anser": "2"}]
    write_task(tmp_path, "own", rows)
    told = f"doc 1 (line 2 of '{tmp_path}/own.jsonl'): expected field 'answer', found problem, anser; rename it"
    with one_line(ArgumentError, told):
        load_named_tasks(["own"], tmp_path)


def test_greedy_runs_write_each_text_once_and_use_it_for_all_samples(caplog):
    task = make_task()
    task.set_config("generation_kwargs", {"temperature": 0.0, "do_sample": None}, update=True)
    results, logged, model = score(task, lambda doc, sample: BOXED[doc] if doc == 0 else "I cannot tell")
    assert len(model.requests) == 2
    assert results["acc,all"] == results["pass@8,all"] == results["maj@8,all"] == 0.5
    assert [len(row["resps"][0]) for row in logged] == [8, 8]
    notices = [record.getMessage() for record in caplog.records if record.name.startswith("lm_eval_takeover")]
    assert [notice for notice in notices if "same text" in notice or "greedy" in notice] == [
        "own: decoding is greedy, so one text of each problem is written and counts as all its 8 samples; pass@k and maj@8 "
        "equal acc"
    ]


def test_samples_that_are_all_the_same_without_greedy_decoding_are_pointed_out(caplog):
    score(make_task(repeats=2), lambda doc, sample: 200 * "so " + BOXED[doc])
    assert "add --gen_kwargs seed=None" in caplog.text
    caplog.clear()
    score(make_task(repeats=2), lambda doc, sample: 200 * "so " + BOXED[doc] + " " * sample)
    score(make_task(), lambda doc, sample: BOXED[doc])  # a few tokens, which any sampling may repeat
    assert "seed=None" not in caplog.text


def test_a_document_with_another_number_of_samples_is_named():
    class Losing(SampledTask):
        def apply_filters(self):
            self.instances[1].resps.pop()
            super().apply_filters()

    with pytest.raises(TakeoverError, match="task own, doc 1 has 7 samples, expected 8"):
        score(make_task(kind=Losing), lambda *_: "4")


def test_what_lm_eval_asks_twice_to_fill_up_ranks_is_not_scored():
    class Padded(SampledTask):
        def build_all_requests(self, **settings):
            super().build_all_requests(**settings | {"world_size": 2})

        def apply_filters(self):
            self.instances[0].resps.extend(["none"] * 8)
            super().apply_filters()

    results, *_ = score(make_task(ROWS[:1], Padded), lambda doc, sample: BOXED[doc])
    assert results["acc,all"] == 1.0


def test_the_header_of_the_prompt_is_a_stop_string_but_not_under_a_chat_template():
    until = {}
    for chat in (False, True):
        _, _, model = score(make_task(repeats=1), lambda *_: "4", apply_chat_template=chat)
        until[chat] = model.requests[0].args[1]["until"]
    assert until == {False: ["\nProblem:", "END"], True: ["END"]}
    assert make_task().config.generation_kwargs["until"] == ["\nProblem:", "END"]


def test_texts_that_are_cut_off_are_counted_and_do_not_break_the_means():
    def reply(doc, sample):
        return Response("", truncated=True) if doc == 0 else Response(BOXED[1], truncated=sample < 2)

    results, logged, _ = score(make_task(), reply)
    assert (results["truncated,all"], results["acc,all"], results["acc_completed,all"]) == (10 / 16, 0.5, 1.0)
    assert [row["acc_completed"] for row in logged] == [(0, 0), (6, 6)]
    results, *_ = score(make_task(), lambda *_: "<think> on and on")
    assert results["truncated,all"] == 1.0
    assert math.isnan(results["acc_completed,all"])


def test_pass_at_k_equals_enumeration():
    for n, correct, k in product(range(1, 9), range(9), range(1, 9)):
        if correct <= n and k <= n:
            drawn = list(combinations([True] * correct + [False] * (n - correct), k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, drawn)) / len(drawn))
    for correct, k in ((9, 1), (-1, 1), (1, 9), (1, 0)):
        with pytest.raises(ValueError, match="is not defined"):
            pass_at_k(8, correct, k)


def test_the_metrics_of_one_problem():
    responses = [r"\boxed{4}"] * 3 + [r"\boxed{5}"] * 2 + ["no idea", r"\boxed{\frac{}{}}", r"<think> \boxed{\frac{1}{}"]
    samples, metrics = score_samples("4", responses)
    assert [sample.answer for sample in samples] == ["4"] * 3 + ["5"] * 2 + [None, r"\frac{}{}", None]
    outcomes = ["correct"] * 3 + ["incorrect"] * 2 + ["no_answer", "unparsed", "no_answer"]
    assert [sample.outcome for sample in samples] == outcomes
    assert metrics == {
        "acc": 3 / 8, "acc_boxed": 3 / 8, "acc_completed": (3, 7), "unboxed": 0.0, "truncated": 0.125,
        "pass@1": pytest.approx(3 / 8), "pass@2": pytest.approx(1 - 10 / 28),
        "pass@4": pytest.approx(1 - 5 / 70), "pass@8": 1.0, "maj@8": 1.0,
        "no_answer": 0.25, "restated": 0.0, "unparsed": 0.125, "timed_out": 0.0, "unclosed_think": 0.125,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"until": "x"}, (Sampling(), ("x",), 256)),
        ({"temperature": 0.7, "top_k": 5, "max_new_tokens": 9}, (Sampling(0.7, 1.0, 5), (), 9)),
        ({"do_sample": False, "temperature": 0.0}, (Sampling(), (), 256)),
        ({"temperature": 0.7, "min_p": 0.1}, (Sampling(0.7, min_p=0.1), (), 256)),
        # as model cards print them
        (
            {"temperature": 0.7, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0.0, "frequency_penalty": "0"},
            (Sampling(0.7), (), 256),
        ),
        *(({"max_gen_toks": 99, name: 9}, (Sampling(), (), 9)) for name in LENGTHS[1:]),  # the command line's stands behind
        ({"max_new_tokens": 99, "max_gen_toks": 9, "max_tokens": None}, (Sampling(), (), 9)),
    ],
)
def test_generation_settings_are_read_as_hf_reads_them(settings, expected):
    assert read_generation_settings(settings, 256) == expected


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"do_sample": True, "temperature": 0.0}, "temperature=0 with do_sample=True"),
        ({"max_gen_toks": 0}, "max_gen_toks=0 is not at least 1 token"),
        ({"max_gen_toks": 2.5}, "max_gen_toks=2.5 is not a whole number of tokens"),
        ({"max_tokens": 2.5}, "max_tokens=2.5 is not a whole number of tokens"),
        ({"stop": ["Units"]}, "generation setting 'stop=['Units']' is not known; did you mean 'until'?"),
        ({"max_gen_toks": "many"}, "cannot be read"),
        ({"max_gen_toks": float("inf")}, "cannot be read"),
        ({"temperature": 1e-50}, "temperature=1e-50 is neither 0"),
        ({"temperatur": 1}, "generation setting 'temperatur=1' is not known; did you mean 'temperature'?"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"repetition_penalty": 1.05}, "generation setting 'repetition_penalty=1.05' is not known"),
        ({"frequency_penalty": "some"}, "cannot be read"),
        ({"temperature": 1, "min_p": 1.5}, "min_p=1.5 is outside [0, 1]"),
        ({"until": [1]}, r"until=[1] is not a list of texts"),
    ],
)
def test_impossible_generation_settings_are_refused(settings, text):
    with one_line(ArgumentError, text):
        read_generation_settings(settings, 256)


def test_texts_are_cut_from_the_left_and_the_last_token_is_only_predicted(caplog):
    texts = [([1, 2, 3], [4, 5]), ([], [4]), ([1], []), ([1, 2, 3, 4], [5, 6]), ([1], [2, 3, 4, 5, 6])]
    assert cut_to_context(texts, prefix=0, max_length=4) == {
        0: ([1, 2, 3], [4, 5]),
        1: ([0], [4]),
        3: ([2, 3, 4], [5, 6]),
        4: ([2], [3, 4, 5, 6]),
    }
    assert "2 of 5 texts are longer than the context of 4 tokens; truncated from the left" in caplog.text


def test_words_are_what_is_compared():
    assert words("Let $x^2 = 4$. FIND  x!") == words("let x^2=4 find ｘ")
    assert problem_digest("Let $x$ be 3.") == problem_digest("let x be 3")


@pytest.mark.parametrize(
    ("task", "prompt"),
    [
        ("takeover_gsm8k", "What is the time?"),
        ("takeover_gsm8k_100", "What is the time?"),
        ("my_own", "<|im_start|>user\nThink first. " + problems()[3]["problem"].upper()),
    ],
)
def test_a_run_on_the_benchmark_is_refused_by_its_name_or_its_problems_and_no_other_is(task, prompt):
    asked = [("takeover_math500", calibration_prompts()[0]), ("takeover_gsm8kk", "What is the time?"), (task, prompt)]
    told = rf"calibration 'mine' was measured on problems of \w+ .*and task {task} asks them"
    with pytest.raises(CalibrationError, match=told):
        refuse_calibrated_tasks("mine", ("takeover_gsm8k", "takeover_demo"), asked)


def test_packaged_digests_are_those_of_the_open_benchmarks(hub, tmp_path):
    from serve_hub import environment

    script = "import sys, json; sys.path.insert(0, 'scripts'); import digest_test_problems as d; print(json.dumps(d.digests()))"
    done = run_code(script, status=0, env=environment(hub.url, str(tmp_path / "hf-home")), cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads(DIGESTS.read_text())
    sizes = {"math500": 500, "gsm8k": 1319, "amc23": 40, "olympiadbench": 674, "aime24": 30, "aime25": 30}
    assert {name: len(found[f"takeover_{name}"]) for name in sizes} == sizes
