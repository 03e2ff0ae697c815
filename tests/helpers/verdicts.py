"""Answers beside golds in the formats of the seven benchmarks and of models: tables of `data/`.

`MATH_VERIFY_DIFFERS` names the cases that math_verify, with its two usual extractors, decides otherwise than a person would.
What we do about them: lists, intervals, inequalities, units, percentages, degrees, bases and plain spellings are read by our own
text rules before it is asked, and numbers must agree to a relative precision after it said yes.
"""

from helpers.tables import read_table

CASES = read_table("verdicts")  # (gold, answer, correct)
MATH_VERIFY_DIFFERS = read_table("math_verify_differs")  # (gold, answer)
