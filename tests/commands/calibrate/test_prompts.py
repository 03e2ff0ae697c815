"""Prompts of a calibration: what is drawn, what a template makes of it, and that no test problem gets in."""

import json

import datasets
import pytest

from lm_eval_takeover.commands.calibrate.prompts import TaskForm, load_task_form, read_prompts
from lm_eval_takeover.demo import problems
from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.method.request import Sampling


@pytest.fixture
def write(tmp_path):
    """Writes texts as rows of a file, and returns its path."""

    def write(texts, field="prompt", name="rows"):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps({field: text, "n": i}) + "\n" for i, text in enumerate(texts)))
        return str(path)

    return write


@pytest.fixture
def rows(write):
    return write(f"How much is {i} and {i}?" for i in range(50))


def test_prompts_are_drawn_by_seed_and_held_out_ones_are_others(rows):
    one, again, other = (read_prompts(rows, count=20, held_out=10, seed=seed) for seed in (0, 0, 1))
    assert one == again
    assert one.texts != other.texts
    assert (len(one.texts), len(one.held_out)) == (20, 10)
    assert not set(one.texts) & set(one.held_out)
    assert read_prompts(rows, count=20).texts == one.texts  # whatever is held out beside them
    assert one.source["digest"] != other.source["digest"]
    few = read_prompts(rows, count=500, held_out=100)  # of too few, two fifths are held out
    assert (len(few.texts), len(few.held_out)) == (30, 20)
    assert len(read_prompts(rows, count=500).texts) == 50


def test_rows_that_repeat_a_prompt_are_left_out(write, caplog):
    assert sorted(read_prompts(write(f"say {i % 3}" for i in range(30))).texts) == ["say 0", "say 1", "say 2"]
    assert "27 rows of" in caplog.text


@pytest.mark.parametrize(
    "wrap", [str.upper, "Problem: {}\nSolution:".format, lambda p: f"You are a careful solver.  {p.replace(' ', '  ')}  Think."]
)
def test_problems_of_a_test_set_are_refused_however_they_are_wrapped(write, wrap):
    path = write(["What is the time?", wrap(problems()[7]["problem"])])
    with pytest.raises(ArgumentError, match=r"1 of 2 prompts are problems of a test set \(takeover_demo: row 2\)"):
        read_prompts(path)


def test_prompts_of_a_task_are_those_that_lm_eval_asks(write):
    """Its own requests for documents with the same problems, with and without a chat template."""
    from lm_eval_takeover.tasks.sampled import load_named_tasks

    rows = [{"problem": f"How much is {i} and {i}?", "answer": "1"} for i in range(4)]
    path = write((row["problem"] for row in rows), "problem")
    form = load_task_form("takeover_demo", None)
    assert (form.sampling.temperature, form.sampling.top_p, form.max_gen_toks) == (0.6, 0.95, 320)
    (task,) = load_named_tasks(["takeover_demo"]).values()
    task.dataset["test"] = datasets.Dataset.from_list(rows)
    task.config.repeats = 1

    def chat(text):
        return f"<user>{text}</user>"

    def template(messages, **_):
        return chat(messages[0]["content"])

    for applied in (False, True):
        task.build_all_requests(apply_chat_template=applied, chat_template=template)
        made = read_prompts(path, task=form, chat=chat if applied else None)
        assert list(made.texts) == [instance.args[0] for instance in task.instances]
        assert (made.source["task"], made.source["template"]) == ("takeover_demo", form.template)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("takeover_dmo", r"--task 'takeover_dmo' is not known; did you mean 'takeover_demo'\?"),
        ("told", r"--task told sets description='Think\.', which its template does not hold"),
        ("asked", r"--task asked is loglikelihood; only generate_until can be calibrated on"),
        ("both", r"--task both holds tasks of 2 forms \(takeover_demo, other\); name one of them"),
    ],
)
def test_a_task_without_one_form_of_prompts_is_refused(tmp_path, name, text):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "x", "answer": "y"}\n')
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {rows}}}}}\ntest_split: test\n"
    shape = 'output_type: generate_until\ndoc_to_text: "{{problem}}"\ndoc_to_target: "{{answer}}"\n'
    (tmp_path / "told.yaml").write_text(f"task: told\n{data}{shape}description: Think.\n")
    (tmp_path / "other.yaml").write_text(f"task: other\n{data}{shape}")
    (tmp_path / "asked.yaml").write_text(f"task: asked\n{data}{shape.replace('generate_until', 'loglikelihood')}")
    (tmp_path / "both.yaml").write_text("group: both\ntask: [takeover_demo, other]\n")
    with pytest.raises(ArgumentError, match=text):
        load_task_form(name, tmp_path)


def test_documents_of_the_task_itself_are_refused_and_are_not_under_diagnostic(write):
    """The very file of one's own benchmark, whatever its fields are called."""
    texts = [f"A box holds {i} red and {i + 2} blue balls. How many are there?" for i in range(12)]
    known = [{"problem": text} for text in texts[:6]]
    form = TaskForm("mine", lambda row: f"Q: {row['problem']}", None, Sampling(0.6), (), 9, known)
    own, others = write(texts[4:], "question", "own"), write(texts[6:], "question", "others")
    with pytest.raises(ArgumentError, match=r"2 of 8 prompts are problems of a test set \(mine: rows 1, 2\)"):
        read_prompts(own, field="question", task=form)
    assert read_prompts(own, field="question", task=form, diagnostic=True).benchmarks == ("mine",)
    assert read_prompts(None, task=form, diagnostic=True).benchmarks == ("mine",)
    made = read_prompts(others, field="question", task=form)
    assert len(made.source["problems"]) == 6 and made.source["checked_against"][-1] == "mine"
