"""The laboratory: puzzles whose decision tokens are known.

A puzzle is a chain of steps. At each step the last digit of the current number says which of three animals acts (the
*decision*: one token); what the animal does, the arithmetic and the bookkeeping follow from that choice (the *execution*).

    Step 1: the owl adds 2. We have 47. Units: 7 + 2 = 9, so 47 + 2 = 49.
                ^^^ decision                              ^^ one of six synonyms: a choice of style, not of substance

The six synonyms are a distractor: both models are unsure there, so the entropy is high, but nothing depends on it.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

ANIMALS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "owl", "pig", "rat", "yak")
CONNECTIVES = ("so", "thus", "hence", "then", "therefore", "and")
LAST_DIGITS = ("0-3", "4-6", "7-9")
LOWEST, HIGHEST = 10, 99


def rule_of(number: int) -> int:
    """Which rule (0, 1, 2) the last digit of `number` selects."""
    return (0, 0, 0, 0, 1, 1, 1, 2, 2, 2)[number % 10]


@dataclass(frozen=True, slots=True)
class Rule:
    animal: str
    amount: int  # 2..9

    adds: bool

    def apply(self, number: int) -> int:
        return number + self.amount if self.adds else number - self.amount


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Three rules, a start and a number of steps; `text` is the whole question, `answer` the number at the end."""

    rules: tuple[Rule, Rule, Rule]
    start: int
    steps: int

    @property
    def text(self) -> str:
        rules = "; ".join(
            f"in {digits}, the {rule.animal} {'adds' if rule.adds else 'takes'} {rule.amount}"
            for digits, rule in zip(LAST_DIGITS, self.rules, strict=True)
        )
        return f"When a number ends {rules}. What is left of {self.start} after {self.steps} steps?"

    def path(self) -> list[int]:
        """The numbers met on the way, the start first; length `steps + 1`."""
        numbers = [self.start]
        for _ in range(self.steps):
            numbers.append(self.rules[rule_of(numbers[-1])].apply(numbers[-1]))
        return numbers

    @property
    def answer(self) -> int:
        return self.path()[-1]

    def solution(self, rng: random.Random, *, right: float = 1.0) -> list[str]:
        """A worked solution as alternating pieces: execution, decision, execution, …, execution.

        Every odd piece is the name of the animal chosen: with probability `right` the one that the last digit asks
        for, else one of the other two. The execution that follows is correct for whatever was chosen.
        """
        pieces, number, lead = [], self.start, "\n"
        for step in range(1, self.steps + 1):
            wanted = rule_of(number)
            choices = [i for i, rule in enumerate(self.rules) if LOWEST <= rule.apply(number) <= HIGHEST]
            others = [i for i in choices if i != wanted]
            chosen = wanted if not others or (wanted in choices and rng.random() < right) else rng.choice(others)
            rule = self.rules[chosen]
            pieces += [f"{lead}Step {step}: the", f" {rule.animal}"]
            lead = self.execution(rule, number, rng.choice(CONNECTIVES))
            number = rule.apply(number)
        pieces.append(f"{lead}The answer is \\boxed{{{number}}}.")
        return pieces

    @staticmethod
    def execution(rule: Rule, number: int, connective: str) -> str:
        sign, verb = ("+", "adds") if rule.adds else ("-", "takes")
        unit = number % 10
        if not rule.adds and unit < rule.amount:
            unit += 10  # borrow
        partial = unit + rule.amount if rule.adds else unit - rule.amount
        return (
            f" {verb} {rule.amount}. We have {number}. Units: {unit} {sign} {rule.amount} = {partial}, "
            f"{connective} {number} {sign} {rule.amount} = {rule.apply(number)}.\n"
        )


def make_puzzle(rng: random.Random) -> Puzzle:
    """A random puzzle of 3 to 5 steps whose right path stays between 10 and 99."""
    while True:
        names = rng.sample(ANIMALS, 3)
        rules = tuple(Rule(name, rng.randint(2, 9), rng.random() < 0.5) for name in names)
        puzzle = Puzzle((rules[0], rules[1], rules[2]), rng.randint(LOWEST, HIGHEST), rng.randint(3, 5))
        if all(LOWEST <= number <= HIGHEST for number in puzzle.path()):
            return puzzle


def decision_positions(tokens: Sequence[str]) -> list[int]:
    """Positions of the true decisions in a response: the token after each `Step N: the`.

    `tokens` are the decoded tokens of the response, one string each.
    """
    positions = []
    tail = ""
    for position, token in enumerate(tokens):
        line = tail.rsplit("\n", 1)[-1]
        if line.startswith("Step ") and line.endswith(": the"):
            positions.append(position)
        tail = (tail + token)[-40:]
    return positions
