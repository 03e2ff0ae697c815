"""The laboratory: every puzzle has one answer, and its decisions are where they are said to be."""

import random

from hypothesis import given
from hypothesis import strategies as st
from puzzle import ANIMALS, decision_positions, make_puzzle
from transformers import AutoTokenizer

from lm_eval_takeover.answers.extraction import read_answer
from lm_eval_takeover.demo import DEMO


@given(st.randoms(use_true_random=False))
def test_a_right_solution_ends_in_the_answer(rng):
    puzzle = make_puzzle(rng)
    assert read_answer("".join(puzzle.solution(rng))).answer == str(puzzle.answer)
    assert all(10 <= number <= 99 for number in puzzle.path())


def test_decision_positions_are_the_animals_tokens():
    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    rng = random.Random(0)
    for _ in range(50):
        puzzle = make_puzzle(rng)
        pieces = puzzle.solution(rng, right=0.5)
        tokens = [tokenizer.decode([i]) for i in tokenizer("".join(pieces)).input_ids]
        positions = decision_positions(tokens)
        assert [tokens[p] for p in positions] == pieces[1::2]
        assert {tokens[p].strip() for p in positions} <= set(ANIMALS)


def test_both_tokenizers_are_one_with_different_padding():
    from transformers import AutoConfig

    base, guide = (AutoTokenizer.from_pretrained(folder) for folder in DEMO.values())
    assert base.get_vocab() == guide.get_vocab()
    assert [AutoConfig.from_pretrained(folder).vocab_size for folder in DEMO.values()] == [512, 544]
    assert all(len(base(f" {animal}").input_ids) == 1 for animal in ANIMALS)
