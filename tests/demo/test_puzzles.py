"""The laboratories: every puzzle has one answer, its decisions are known, and on the graded one no gate at 5 % is perfect."""

import json

from graded_puzzle import KINDS, UNKNOWN, GradedPuzzle, make_graded
from hypothesis import given
from hypothesis import strategies as st
from puzzle import make_puzzle
from train_demo_pair import write_graded
from transformers import AutoTokenizer

from lm_eval_takeover import demo
from lm_eval_takeover.answers.extraction import read_answer
from lm_eval_takeover.demo import DEMO


@given(st.randoms(use_true_random=False))
def test_a_right_solution_ends_in_the_answer(rng):
    puzzle = make_puzzle(rng)
    assert read_answer("".join(puzzle.solution(rng))).answer == str(puzzle.answer)
    assert all(10 <= number <= 99 for number in puzzle.path())


TOKENIZER = AutoTokenizer.from_pretrained(DEMO["base"])


def tokens_of(text):
    return [TOKENIZER.decode([token]) for token in TOKENIZER(text).input_ids]


@given(st.randoms(use_true_random=False), st.sampled_from(KINDS))
def test_what_is_drawn_from_the_pieces_is_right_and_another_animal_is_not(rng, kind):
    made = make_graded(rng, kind)
    assert GradedPuzzle.read(made.puzzle.text, made.given) == made
    text = "".join(rng.choice(options) for options in made.pieces)
    assert read_answer(text).answer == str(made.rest.answer)
    assert made.needed_takeovers(tokens_of(text), tokens_of(text)) == []
    assert all(made.keeps_right(text[:end]) for end in range(len(text))) and made.keeps_right(text + " And so on.")
    decisions = [options for options in made.pieces if any(f" {rule.animal}" in options for rule in made.puzzle.rules)]
    assert len(decisions) == made.rest.steps <= (2 if kind in ("short", "flawed") else 5)
    start = made.pieces[0][0]
    right = {rule.animal for rule in made.puzzle.rules if made.keeps_right(f"{start} {rule.animal}")}
    assert {f" {animal}" for animal in right} == set(decisions[0]) and 1 <= len(right) <= 3


def test_the_takeovers_that_a_text_needs_are_the_draws_that_leave_all_right_solutions():
    rules = "in 0-3, the cat adds 6; in 4-6, the pig adds 6; in 7-9, the bee takes 9"
    made = GradedPuzzle.read(f"When a number ends {rules}. What is left of 31 after 3 steps?", "")
    text = "".join(options[-1] for options in made.pieces)
    tokens = tokens_of(text)
    assert " pig" in made.pieces[1] and " cat" in made.pieces[1]  # both add 6
    drawn = [{"and": " so", " bee": " cat", " pig": " cat", "}.": UNKNOWN}.get(token, token) for token in tokens]
    places = [place for place, token in enumerate(drawn) if token != tokens[place]]
    needed = made.needed_takeovers(tokens, drawn)
    assert needed == [place for place in places if tokens[place] in (" bee", "}.")] and 0 < len(needed) < len(places)
    assert made.needed_takeovers(drawn, tokens) is None


def test_the_packaged_problems_are_those_of_the_script(tmp_path):
    plain, graded = demo.problems(), demo.problems(demo.GRADED_PROBLEMS)
    assert [row["kind"] for row in graded] == [*KINDS] * 25
    texts = {row["problem"] for row in [*plain, *graded]}
    prompts = [json.loads(line)["prompt"] for line in demo.GRADED_PROMPTS.read_text().splitlines()]
    assert len(texts) == len(plain) + len(graded) == 300 and len(set(prompts)) == 300
    prompts += demo.calibration_prompts()
    assert len(prompts) == 1000 and not any(text in prompt for prompt in prompts for text in texts)
    for row in graded:
        made = GradedPuzzle.read(row["problem"], row["given"])
        assert str(made.rest.answer) == row["answer"]
        assert (row["kind"] == "twins") <= (len({(rule.amount, rule.adds) for rule in made.puzzle.rules}) < 3)
    (tmp_path / "problems.jsonl").write_text(demo.PROBLEMS.read_text())
    write_graded(tmp_path, 2029)
    for path in (demo.GRADED_PROBLEMS, demo.GRADED_PROMPTS):
        assert (tmp_path / path.name).read_text() == path.read_text()
