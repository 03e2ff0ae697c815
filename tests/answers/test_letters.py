"""The letter of a response to a multiple-choice question."""

import pytest
from helpers.tables import read_table

from lm_eval_takeover.answers.letters import read_letter


@pytest.mark.parametrize(("response", "letter"), read_table("letters"))
def test_letters(response, letter):
    assert read_letter(response).answer == letter
