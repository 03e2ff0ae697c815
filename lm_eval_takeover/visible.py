"""Texts that someone else wrote (names, answers, paths) in what a person reads: nothing in them acts, all of them is seen."""

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format, surrogates, private use, separators of lines
_LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
          "^": r"\^{}", "~": r"\textasciitilde{}", "–": "--"}  # fmt: skip
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": r"\|", "[": r"\[", "]": r"\]", "`": r"\`", "\\": r"\\"}


def for_terminal(text: str, *, lines: bool = True) -> str:
    """Escape sequences, bidirectional marks and the like as their codes, `\\u001b`; ends of lines, too, unless they may stay."""
    kept = "\n\t" if lines else ""
    return "".join(
        f"\\u{ord(letter):04x}" if letter not in kept and unicodedata.category(letter) in _HIDDEN else letter
        for letter in text
    )


def for_latex(text: str) -> str:
    """One line in which no command stands."""
    return "".join(_LATEX.get(letter, letter) for letter in for_terminal(text, lines=False))


def for_markdown(text: str) -> str:
    """One line without HTML, links, code, or the end of a table's cell."""
    return "".join(_MARKDOWN.get(letter, letter) for letter in for_terminal(text.replace("\n", " "), lines=False))


def for_csv(value: object) -> object:
    """A text that a spreadsheet would compute gets an apostrophe; numbers stay what they are."""
    if not isinstance(value, str):
        return value
    text = for_terminal(value)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") and text.strip() != "-" else text
