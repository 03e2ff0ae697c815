"""Graded puzzles for the bundled pair: easy and hard, short and long answers, and decisions of unequal weight.

    python scripts/graded_puzzle.py RUN…      the traces of these runs: how many texts go wrong, and how many at a decision

A graded puzzle is a puzzle and the first steps of its solution, which stand in the prompt. Its kinds are

    long      no step is given: three to five decisions are left
    short     one or two decisions are left
    twins     no step is given, and two of the animals do the same: a wrong choice between them does no harm
    flawed    as `short`, but one given step is by the wrong animal, which neither model has read in training

The task draws at a high temperature. So any token can be wrong, the guide's too, and not only a decision. `keeps_right` knows
which: it tells whether a text is still the start of a right solution.
"""

import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from puzzle import (
    CONNECTIVES,
    HIGHEST,
    LOWEST,
    Puzzle,
    Rule,
    decision_positions,
    make_puzzle,
    rule_of,
)

KINDS = ("long", "short", "twins", "flawed")
UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # what a padded id of the embedding reads as; it is drawn at this temperature
_RULE = re.compile(r"the (\w+) (adds|takes) (\d)")


@dataclass(frozen=True)
class GradedPuzzle:
    """A puzzle, and the text behind `Solution:` that its prompt has; `number` and `steps` are what is left from there."""

    puzzle: Puzzle
    given: str = ""

    @classmethod
    def read(cls, problem: str, given: str) -> Self:
        """The puzzle of a document of the task."""
        rules = [Rule(animal, int(amount), verb == "adds") for animal, verb, amount in _RULE.findall(problem)]
        start, steps = map(int, re.findall(r"of (\d+) after (\d+) steps", problem)[0])
        return cls(Puzzle((rules[0], rules[1], rules[2]), start, steps), given)

    @property
    def rest(self) -> Puzzle:
        """The puzzle that is left behind the given steps."""
        reached = [self.puzzle.start, *map(int, re.findall(r"(\d+)\.\n", self.given))]
        return replace(self.puzzle, start=reached[-1], steps=self.puzzle.steps - len(reached) + 1)

    @cached_property
    def pieces(self) -> list[tuple[str, ...]]:
        """All right solutions: each is one text of each piece. Animals that do the same are as right as each other."""
        rest, pieces = self.rest, []
        for step, number in enumerate(rest.path()[:-1], self.puzzle.steps - rest.steps + 1):
            right = rest.rules[rule_of(number)]
            animals = (f" {rule.animal}" for rule in rest.rules if rule.apply(number) == right.apply(number))
            before, after = Puzzle.execution(right, number, "|").split("|")
            pieces += [("\n" * (step == 1) + f"Step {step}: the",), tuple(animals), (before,), CONNECTIVES, (after,)]
        return [*pieces, (f"The answer is \\boxed{{{rest.answer}}}.",)]

    def keeps_right(self, text: str) -> bool:
        """Whether a response that begins like this can still be a right solution, or has one and goes on."""
        for options in self.pieces:
            if (found := next((option for option in options if text.startswith(option)), None)) is None:
                return any(option.startswith(text) for option in options)
            text = text[len(found) :]
        return True

    def find_departure(self, tokens: Sequence[str]) -> int | None:
        """The position of the first token with which a response leaves all right solutions; None if it never does."""
        ends = ("".join(tokens[: position + 1]) for position in range(len(tokens)))
        return next((position for position, text in enumerate(ends) if not self.keeps_right(text)), None)

    def needed_takeovers(self, tokens: Sequence[str], drawn: Sequence[str]) -> list[int] | None:
        """Positions at which the base's own draw would have left all right solutions; None if `tokens` left them.

        `tokens` are a response's decoded tokens, `drawn` what the base drew at each. No selector of single tokens reaches this
        text with fewer takeovers.
        """
        if self.find_departure(tokens) is not None:
            return None
        starts = ["".join(tokens[:position]) for position in range(len(tokens))]
        return [place for place, token in enumerate(drawn) if not self.keeps_right(starts[place] + token)]


def make_graded(rng: random.Random, kind: str) -> GradedPuzzle:
    """A random puzzle of this kind; from the given steps on its numbers stay between 10 and 99."""
    while True:
        puzzle = make_puzzle(rng)
        first, second = rng.sample(range(3), 2)
        if kind == "twins":
            rules = list(puzzle.rules)
            rules[second] = replace(rules[first], animal=rules[second].animal)
            puzzle = replace(puzzle, rules=(rules[0], rules[1], rules[2]))
        given = puzzle.steps - rng.randint(1, 2) if kind in ("short", "flawed") else 0
        flaw = rng.randrange(given) if kind == "flawed" else None
        text, number, numbers = "\n" * (given > 0), puzzle.start, []
        for step in range(given):
            rule = puzzle.rules[(rule_of(number) + (rng.randint(1, 2) if step == flaw else 0)) % 3]
            text += f"Step {step + 1}: the {rule.animal}{Puzzle.execution(rule, number, rng.choice(CONNECTIVES))}"
            number = rule.apply(number)
            numbers.append(number)
        made = GradedPuzzle(puzzle, text)
        if all(LOWEST <= number <= HIGHEST for number in [*numbers, *made.rest.path()]):
            return made


Text = tuple[GradedPuzzle, list[str], list[str]]  # the puzzle, the decoded tokens, and what the base drew at each


def read_texts(run_dir: Path) -> dict[tuple[int, int], Text]:
    """Each `(document, sample)` of the graded task in the traces of a run."""
    from transformers import AutoTokenizer

    from lm_eval_takeover.demo import DEMO, GRADED_PROBLEMS, problems
    from lm_eval_takeover.runs.run_reader import read_run_folder

    tokenizer = AutoTokenizer.from_pretrained(DEMO["base"])
    words = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
    puzzles = [GradedPuzzle.read(row["problem"], row["given"]) for row in problems(GRADED_PROBLEMS)]
    texts: dict[tuple[int, int], Text] = {}
    for one, found in read_run_folder(run_dir).read_traces(["token_id", "host_token_id"]):
        if one.task == "takeover_demo_graded":
            ids = (found[name].tolist() for name in ("token_id", "host_token_id"))
            written, drawn = ([words.get(token, UNKNOWN) for token in tokens] for tokens in ids)
            texts[one.doc_id, one.sample] = puzzles[one.doc_id], written, drawn
    return texts


def read_needed_takeovers(run_dir: Path) -> dict[tuple[int, int], list[int] | None]:
    """`needed_takeovers` of each `(document, sample)` in the traces of a run in which the base draws every token."""
    return {key: puzzle.needed_takeovers(tokens, drawn) for key, (puzzle, tokens, drawn) in read_texts(run_dir).items()}


def main() -> None:
    for run_dir in sys.argv[1:]:
        texts = [(puzzle.find_departure(tokens), tokens) for puzzle, tokens, _ in read_texts(Path(run_dir)).values()]
        left = [place in decision_positions(tokens) for place, tokens in texts if place is not None]
        print(f"{run_dir}: {len(left)} of {len(texts)} texts leave all right solutions, {sum(left)} of them at a decision")


if __name__ == "__main__":
    main()
