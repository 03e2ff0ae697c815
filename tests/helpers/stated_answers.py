"""What responses without a box state: tables of `data/`.

Each response stands beside a near miss, which differs in a word or two: it asks, supposes, hedges, reports, denies, goes on to
calculate, or states another value. Judged by reading alone, as a person would mark a worked solution: is this value what the last
sentence says the answer is? Doubtful ones were read again where the rules and the first reading differed; what stayed doubtful
was left out.
"""

from helpers.tables import read_table

STATED = read_table("stated_values")  # (gold, response, near miss)
LETTERS = read_table("stated_letters")  # (letter, response, near miss): the near miss does not answer with that letter
RUN_ON = read_table("run_on_texts")  # (gold, response, near miss): base texts that run on into a problem of their own
# (kind, gold, response, verdict, decided): statements and near misses of two batches by another hand, then of the rules' author;
# `decided` is what the rules make of each, which differs from the verdict where they are wrong.
JUDGED = read_table("judged_statements")
