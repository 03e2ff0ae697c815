"""Prompts of a calibration: what is drawn, what a template makes of it, and that no test problem gets in."""

import json
import sys

import pytest
from helpers.pairs import ROOT
from helpers.processes import run

from lm_eval_takeover.commands.calibrate.prompts import TEST_DIGESTS, problem_digest, read_prompts, words
from lm_eval_takeover.demo import CALIBRATION_PROMPTS, problems
from lm_eval_takeover.errors import ArgumentError


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"How much is {i} and {i}?", "n": i}) + "\n" for i in range(50)))
    return str(path)


def test_prompts_are_drawn_by_seed_and_held_out_ones_are_others(rows):
    one, again, other = (read_prompts(rows, count=20, held_out=10, seed=seed) for seed in (0, 0, 1))
    assert one == again
    assert one.texts != other.texts
    assert (len(one.texts), len(one.held_out)) == (20, 10)
    assert not set(one.texts) & set(one.held_out)
    assert read_prompts(rows, count=20).texts == one.texts  # whatever is held out beside them
    assert one.source["digest"] != other.source["digest"]


def test_too_few_rows_leave_a_fifth_held_out(rows):
    made = read_prompts(rows, count=500, held_out=100)
    assert (len(made.texts), len(made.held_out)) == (40, 10)
    assert len(read_prompts(rows, count=500).texts) == 50


def test_a_template_reads_the_fields_of_a_row(rows):
    made = read_prompts(rows, count=1, template="Q{{n}}: {{prompt}}\\nA:")
    number = made.source["indices"][0]
    assert made.texts == (f"Q{number}: How much is {number} and {number}?\nA:",)
    assert made.source["template"] == "Q{{n}}: {{prompt}}\\nA:"
    with pytest.raises(ArgumentError, match=r"'m' is undefined; its fields are those of a row: prompt, n"):
        read_prompts(rows, count=1, template="{{m}}")
    for broken, text in (("{{1/0}}", "division by zero"), ("{{prompt/2}}", "unsupported operand")):
        with pytest.raises(ArgumentError, match=text):
            read_prompts(rows, count=1, template=broken)
    assert read_prompts(rows, count=1, template=r"a\nB \neq c").texts == ("a\nB \\neq c",)
    chatted = read_prompts(rows, count=1, chat=lambda text: f"<user>{text}</user>")
    assert chatted.texts == (f"<user>How much is {number} and {number}?</user>",)
    assert chatted.source["chat_template"]


def test_rows_that_repeat_a_prompt_are_left_out(tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"say {i % 3}"}) + "\n" for i in range(30)))
    assert sorted(read_prompts(str(path)).texts) == ["say 0", "say 1", "say 2"]
    assert "27 rows of" in caplog.text


def test_lines_end_at_line_feeds_only(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": "one\u2028two\x85three\x0cfour"}, {"prompt": "five"}]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows).encode())
    assert set(read_prompts(str(path)).texts) == {row["prompt"] for row in rows}


def test_words_are_what_is_compared():
    assert words("Let $x^2 = 4$. FIND  x!") == words("let x^2=4 find ｘ")
    assert problem_digest("Let $x$ be 3.") == problem_digest("let x be 3")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda p: p,
        lambda p: p.upper(),
        lambda p: f"Problem: {p}\nSolution:",
        lambda p: f"You are a careful solver.  {p.replace(' ', '  ')}  Think first.",
    ],
)
def test_problems_of_a_test_set_are_refused_however_they_are_wrapped(tmp_path, wrap):
    problem = problems()[7]["problem"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("What is the time?", wrap(problem))))
    with pytest.raises(ArgumentError, match=r"1 of 2 prompts are problems of a test set \(takeover_demo: row 2\)"):
        read_prompts(str(path))


def test_the_prompts_of_the_demo_pair_hold_no_problem_of_the_demo_task():
    assert len(read_prompts(str(CALIBRATION_PROMPTS), count=700).texts) == 700


def test_packaged_digests_are_those_of_the_open_benchmarks(hub, tmp_path):
    from serve_hub import environment

    script = "import sys, json; sys.path.insert(0, 'scripts'); import digest_test_problems as d; print(json.dumps(d.digests()))"
    done = run([sys.executable, "-c", script], env=environment(hub.url, str(tmp_path / "hf-home")), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == json.loads(TEST_DIGESTS.read_text())
    assert [len(found[f"takeover_{name}"]) for name in ("math500", "gsm8k", "amc23", "olympiadbench", "aime24", "aime25")] == [
        500, 1319, 40, 674, 30, 30
    ]  # fmt: skip
