"""Methods by the names that people type: `NAME[:argument=value[:argument=value…]][@rate[:rate…]]`.

ce                       a score: the gate on it
segment:length=8         a policy, with a model argument
surprise@0.02:0.05       with the realized rates that are wanted of it
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lm_eval_takeover.errors import ArgumentError, nearest
from lm_eval_takeover.method.policy import policies
from lm_eval_takeover.method.registry import scores

THINKING = "thinking"  # the row of a reasoning model that is not the pair's guide
# Names of ours in the registries, which load torch to know them.
OURS = ("ce", "rkl", "js", "entropy", "disagreement", "random", "early", "base", "guide")
_GRAMMAR = "NAME[:argument=value…][@rate…]"


@dataclass(frozen=True)
class Named:
    """A word of this grammar: `name` without arguments and rates."""

    name: str
    arguments: Mapping[str, str]
    rates: tuple[float, ...]


def parse_word(option: str, word: str) -> Named:
    """Take a word apart; whether there is such a method is not asked. Raises ArgumentError that names the option."""
    before, at, behind = word.partition("@")
    name, *pairs = before.split(":")
    arguments = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not (key and sign and value):
            raise ArgumentError(f"--{option} '{word}': '{pair}' is not argument=value; expected {_GRAMMAR}")
        arguments[key] = value
    return Named(name, arguments, parse_rates(option, word, behind.split(":")) if at else ())


def parse_rates(option: str, word: str, texts: list[str]) -> tuple[float, ...]:
    """Realized rates, each once, in rising order. Raises ArgumentError for what is no share of tokens."""
    rates = set()
    for text in texts:
        try:
            rate = float(text)
        except ValueError:
            rate = -1.0
        if not 0 < rate < 1:
            raise ArgumentError(f"--{option} '{word}': '{text}' is no rate, a number between 0 and 1")
        rates.add(rate)
    return tuple(sorted(rates))


def find_policy(option: str, name: str) -> dict[str, str]:
    """The model arguments `policy` and perhaps `score` that a name stands for. Raises ArgumentError with the nearest name."""
    if name in policies:
        return {"policy": name}
    if name in scores:
        return {"policy": "disagreement", "score": name}
    raise ArgumentError(f"--{option} '{name}' is not known; {nearest(name, [*policies.names(), *scores.names()])}")


def check_name(option: str, name: str, more: Collection[str] = ()) -> None:
    """Raise ArgumentError with the nearest name for one that neither we nor an installed package have. Loads none of them."""
    known = [*OURS, *policies.installed(), *scores.installed(), *more]
    if name not in known:
        raise ArgumentError(f"--{option} '{name}' is not known; {nearest(name, known)}")
