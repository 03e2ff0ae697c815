"""Numbers of printed tables, held against those of a JSON document."""

import re

from torch.utils._pytree import tree_leaves

NUMBER = re.compile(r"(?<![\w.@])[+-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w@])")

# Of tasks, models, seeds and the paper's tables; and a bound that stands for small numbers.
NAMES = re.compile(r"Table \d+|< 0\.0001|\(seed \d\)|\(seed$|^\d\)|\b3\.1-8B|\S*_\S*")


def numbers_of(value):
    """All numbers of a JSON document."""
    return [float(one) for one in tree_leaves(value) if isinstance(one, (int, float)) and not isinstance(one, bool)]


def is_of(text, known):
    """Whether a printed number is one of these, as it is or in percent, rounded to the digits that it has."""
    shown = float(text.replace(",", ""))
    digits = len(text.partition("e")[0].partition(".")[2])
    reach = 0.5 * 10.0**-digits + 1e-9
    if "e" in text:
        reach = abs(shown) / 100
    return any(abs(shown - scale * one) <= reach for one in known for scale in (1, 100, 1e-6, 1e-9))


def check_numbers(printed, document, least=1):
    """Tables have that many numbers at least, and each is one of the document."""
    known = numbers_of(document)
    found = [text for line in table_lines(printed) for text in NUMBER.findall(NAMES.sub("", line))]
    assert len(found) >= least and not [text for text in found if not is_of(text, known)], printed


def table_lines(printed):
    """The lines of tables, without headings, rules and notes."""
    lines, inside = [], False
    for line in printed.splitlines():
        if set(line.replace(" ", "")) == {"─"}:
            inside = True
        elif not line.strip():
            inside = False
        elif inside:
            lines.append(line)
    return lines
