"""Escapes untrusted text (names, answers, paths) for terminals, Markdown, LaTeX, figures and CSV."""

import logging
import re
import unicodedata
from collections.abc import Sequence

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format, surrogates, private use, separators of lines
_LATEX = {"\\": r"\textbackslash{}", "_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
          "^": r"\^{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
          "–": "--", "†": r"\textdagger{}", "‡": r"\textdaggerdbl{}"}  # fmt: skip
_MARKDOWN = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": r"\|", "[": r"\[", "]": r"\]", "`": r"\`", "\\": r"\\"}
_COMMAND = re.compile(r"(?<!\S)(?=::|##\[)")  # of a CI's log, at the start of a line


def for_terminal(text: str, *, lines: bool = True) -> str:
    """Shows escape sequences, bidirectional marks and the like as codes, `\\u001b`. Line ends stay if `lines`.

    What a CI would take for a command gets a backslash, since any word may come to stand at the start of a line.
    """
    spaces = "\n\t" if lines else ""
    shown = "".join(f"\\u{ord(letter):04x}" if letter not in spaces and _is_hidden(letter) else letter for letter in text)
    return _COMMAND.sub(r"\\", shown)


def _is_hidden(letter: str) -> bool:
    """Also of what is no character in any text, and ill-formed in XML: U+FFFE, U+FFFF and so on."""
    return unicodedata.category(letter) in _HIDDEN or ord(letter) & 0xFFFE == 0xFFFE


def for_latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in for_terminal(text, lines=False))


def for_markdown(text: str) -> str:
    """One line without HTML, links, code, or the end of a table's cell."""
    return "".join(_MARKDOWN.get(letter, letter) for letter in for_terminal(text.replace("\n", " "), lines=False))


def for_figure(text: str) -> str:
    """Without lone surrogates and control characters, which matplotlib refuses or draws as boxes, and without its formulas."""
    return for_terminal(text).replace("$", r"\$")


def for_csv(value: object) -> object:
    """Puts an apostrophe before a text that a spreadsheet would compute. Numbers stay as they are."""
    if not isinstance(value, str):
        return value
    text = for_terminal(value)
    return f"'{text}" if text.lstrip()[:1] in ("=", "+", "-", "@") and text.strip() != "-" else text


def make_page_policy(scripts: Sequence[str], style: str, *more: str) -> str:
    """A page's Content-Security-Policy: allows these scripts and this style by digest, and `more`. Nothing else is loaded."""
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    parts = ["default-src 'none'", f"script-src {allowed}", f"style-src 'sha256-{_digest(style)}'"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'", *more])


def _digest(text: str) -> str:
    import base64  # imported here, since every command imports this module
    import hashlib

    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class _Notices(logging.Handler):
    """Escapes our log records before other handlers write them."""

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = for_terminal(record.getMessage()), None
        above = logging.getLogger("lm_eval_takeover").parent
        if logging.lastResort is not None and not (above and above.hasHandlers()) and record.levelno >= logging.WARNING:
            logging.lastResort.handle(record)  # as Python does where nobody else writes


def make_notices_visible() -> None:
    """Pass all log messages of this package through `for_terminal`. They hold names of files, models and tokens."""
    ours = logging.getLogger("lm_eval_takeover")
    if not any(isinstance(handler, _Notices) for handler in ours.handlers):
        ours.addHandler(_Notices())
