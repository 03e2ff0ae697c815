"""How many tokens of a draft stand."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_takeover.method.verification import count_standing

_ROWS = st.lists(st.tuples(st.integers(0, 5), st.lists(st.booleans(), min_size=6, max_size=6)), min_size=1, max_size=5)


@given(_ROWS, st.booleans())
def test_a_draft_stands_up_to_the_first_other_token(rows, bonus):
    lengths, differs = torch.tensor([length for length, _ in rows]), torch.tensor([row for _, row in rows])
    drafted = torch.arange(6).expand(len(rows), 6)
    counts, ended = count_standing(drafted + differs, drafted, lengths, bonus=bonus)
    for (length, row), count, end in zip(rows, counts.tolist(), ended.tolist(), strict=True):
        first = next((place for place in range(length) if row[place]), None)
        assert (count, end) == ((length + bonus, False) if first is None else (first + 1, True))
