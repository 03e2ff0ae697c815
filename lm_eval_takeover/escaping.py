"""Texts that someone else wrote (names, answers, paths) in what a person reads: nothing in them acts, all of them is seen."""

import logging
import unicodedata
from collections.abc import Sequence

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


def make_page_policy(scripts: Sequence[str], style: str, *more: str) -> str:
    """A page's Content-Security-Policy: these scripts and this style run, by their digests; nothing is loaded but by `more`."""
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    parts = ["default-src 'none'", f"script-src {allowed}", f"style-src 'sha256-{_digest(style)}'"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'", *more])


def _digest(text: str) -> str:
    import base64  # here, since every command imports this module
    import hashlib

    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Notices(logging.Handler):
    """Stands at our logger, before the handlers that write: what they get has no control characters."""

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = for_terminal(record.getMessage()), None
        above = logging.getLogger("lm_eval_takeover").parent
        if logging.lastResort is not None and not (above and above.hasHandlers()) and record.levelno >= logging.WARNING:
            logging.lastResort.handle(record)  # as Python does where nobody else writes


def make_notices_visible() -> None:
    """Have all notices of this package pass through `for_terminal`: names of files, models and tokens stand in them."""
    ours = logging.getLogger("lm_eval_takeover")
    if not any(isinstance(handler, _Notices) for handler in ours.handlers):
        ours.addHandler(_Notices())
