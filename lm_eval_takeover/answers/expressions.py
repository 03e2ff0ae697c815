"""One expression against one expression, by math_verify behind a guard.

A small grammar writes plain mathematics as LaTeX. Number literals are made without `sympify`. A guard checks each *correct*,
because math_verify takes some unequal numbers and expressions for equal.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from lm_eval_takeover.answers.normalisation import find_closing, parse_rational, unwrap_text

PRECISION = 1e-6  # relative, for numbers that math_verify calls equal
_ZERO = 1e-50  # what sin π may come to with 20 digits
OF_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi|theta|alpha|beta|gamma"
_FUNCTION = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])")
_PRIMED = re.compile(r"([A-Za-z])('+)")
_COMMON = re.compile(r"\\(?:gcd|lcm)\s*+\((?![\d, ]++\))")  # of letters: sympy takes it for 1
_DUMMY = re.compile(r"_\s*+\{\s*+[a-z]\s*+=[^{}=]*\}")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{5,}")
_MARKUP = re.compile(
    r"[<>=]|\d\s*+'|\\(?:begin|end|le|ge|ne|in|cup|cap|text\w*|mbox|Rightarrow|to|implies)(?![A-Za-z])|[^\x20-\x7e°]"
)


class Unparsed(Exception):
    """An answer that math_verify cannot read."""


def to_latex(expression: str) -> str:
    """Plain mathematics as LaTeX: `sqrt(2)*sin(x)**2` as `\\sqrt{2}\\cdot \\sin(x)^{2}`; LaTeX stays what it is."""
    text = unwrap_text(expression).replace("**", "^")
    text = re.sub(r"\*", r"\\cdot ", text)
    text = _FUNCTION.sub(lambda match: f"\\{match[1]} ", text)
    text = re.sub(r"\\exp\s*+\(", "e^(", text)
    text = re.sub(r"\\(max|min|gcd|lcm)\s*+\\\{([^{}]*)\\\}", r"\\\1(\2)", text)
    text = _PRIMED.sub(lambda match: f"{match[1]}_{{{900 + len(match[2])}}}", text)  # x and x' are two letters
    text = re.sub(r"(?<![\w)])(\w+)!\s*+\^", r"(\1!)^", text)
    if OF_ANGLE.search(text):
        text = re.sub(r"(\d+(?:\.\d+)?)\s*+°", r"(\\frac{\1 \\pi}{180})", text)
    text = re.sub(r"\^\s*+(-?\d{2,}|-\s*+[A-Za-z\d])", r"^{\1}", text)
    text = re.sub(  # 8^{0.5} is a root, exactly
        r"\^\s*+\{\s*+(-?)(\d{0,3})\.(\d{1,3})\s*+\}",
        lambda match: rf"^{{{match[1]}\frac{{{int(match[2] + match[3])}}}{{{10 ** len(match[3])}}}}}",
        text,
    )
    for opener in (r"\\sqrt\s*+\(", r"\^\s*+\("):
        while match := re.search(opener, text):
            start = match.end() - 1
            end = find_closing(text, start, "(", ")")
            if end < 0:
                raise Unparsed(expression)
            text = f"{text[: match.end() - 1].rstrip()}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
    return text


@lru_cache(maxsize=2)
def _make_converter(real: bool) -> Any:
    """latex2sympy's converter, case-sensitive, with numbers made by their class and not by `sympify`, which would `eval` them."""
    import sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    class Converter(_Latex2Sympy):  # type: ignore[misc]
        def parse_number(self, text: str) -> Any:
            digits = text.replace(",", "").replace(" ", "")
            return sympy.Integer(int(digits)) if digits.isdigit() else sympy.Float(digits)

    return lambda latex: Converter(is_real=real, config=ConversionConfig(lowercase_symbols=False)).parse(latex)


def parse_expression(expression: str, other: str = "") -> Any:
    """The sympy expression of one side; `other` tells whether both are about complex numbers. Raises Unparsed."""
    from math_verify.grader import should_treat_as_complex

    return _parse(expression, not (should_treat_as_complex(expression) or should_treat_as_complex(other)))


@lru_cache(maxsize=4096)
def _parse(expression: str, real: bool) -> Any:
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex

    if _COMMON.search(expression) or _LONG_WORD.search(unwrap_text(expression)) or _MARKUP.search(_DUMMY.sub("", expression)):
        raise Unparsed(expression)
    latex = to_latex(expression).replace("°", "")
    try:
        tidied = normalize_latex(latex, NormalizationConfig(malformed_operators=True, nits=True, boxed="none"))
        read = _make_converter(real)(tidied)
    except Exception as error:  # the grammar raises bare Exceptions
        raise Unparsed(expression) from error
    if read is None or not hasattr(read, "free_symbols"):
        raise Unparsed(expression)
    return _replace_calls(read)


def _replace_calls(read: Any) -> Any:
    """Calls of unknown functions, as `f(0)` or `P(A)`, are letters; `i` is the imaginary unit where it is no index."""
    import sympy
    from sympy.core.function import AppliedUndef

    if isinstance(read, sympy.UnevaluatedExpr):  # a greatest common divisor
        return read.doit()
    if isinstance(read, sympy.Basic):
        calls = {call: sympy.Symbol(str(call.func(*map(sympy.expand, call.args)))) for call in read.atoms(AppliedUndef)}
        read = read.xreplace(calls)
        if not read.has(sympy.Sum, sympy.Product):
            read = read.xreplace({letter: sympy.I for letter in read.free_symbols if letter.name == "i"})
    return read


def evaluate(text: str) -> float | None:
    """The value of a real number; None for anything else."""
    number = parse_rational(text)
    if number is not None:
        return float(number)
    try:
        value = parse_expression(text).evalf(20)
        return float(value) if value.is_Float or value.is_Integer else None
    except (Unparsed, AttributeError, TypeError):
        return None


def is_same_value(left: Any, right: Any, tolerance: float) -> bool:
    """math_verify's verdict on two parsed expressions, behind the guard; most wrong answers differ in value and end here."""
    import math_verify
    import sympy

    sympy.core.random.seed(0)  # identities are tested at random points; verdicts are reproducible
    unbounded = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if left.has(*unbounded) or right.has(*unbounded):  # oo - oo and 0 * oo compare as anything
        return left in (sympy.oo, -sympy.oo) and bool(left == right)
    stepped = (sympy.floor, sympy.ceiling, sympy.Sum, sympy.Product)
    if left.has(*stepped) or right.has(*stepped):
        return _agree_on_integers(left, right)
    numbers = all(getattr(side, "is_number", False) for side in (left, right))
    compared = _difference_at_point(left, right)
    if compared is None and numbers:
        return bool(left == right)
    if compared is not None:
        difference, size = compared
        if numbers and tolerance:
            return bool(difference <= tolerance)
        if difference > max((1 if numbers else 1e3) * PRECISION * size, _ZERO):
            return False
    if not math_verify.verify(left, right, timeout_seconds=None):
        return False
    same = left.free_symbols == right.free_symbols
    return bool(same or sympy.simplify(left).free_symbols == sympy.simplify(right).free_symbols)


def _agree_on_integers(left: Any, right: Any) -> bool:
    """Whether two expressions with floors, ceilings, sums or products agree at 40 points of positive integers."""
    symbols = left.free_symbols | right.free_symbols
    names = sorted(map(str, symbols))
    for number in range(1, 41):
        point = {symbol: number + (3 + number) * names.index(str(symbol)) % 17 for symbol in symbols}
        # Exact, not evalf: rounding puts a value near 2 on either side of its floor.
        compared = _difference_at_point(left.subs(point).doit(), right.subs(point).doit())
        if compared is None or compared[0] > PRECISION * compared[1]:
            return False
    return True


def _difference_at_point(left: Any, right: Any) -> tuple[Any, Any] | None:
    """The absolute difference of two expressions at some integers (for floors), and the larger value; None if not finite."""
    try:
        symbols = sorted(left.free_symbols | right.free_symbols, key=str)
        point = dict(zip(symbols, (7, 5, 11, 3, 13, 4, 17, 6), strict=False))
        a, b = (side.evalf(20, subs=point) for side in (left, right))
        difference, size = abs(a - b), max(abs(a), abs(b))
        return (difference, size) if difference.is_Float or difference == 0 else None
    except Exception:  # matrices, sets, relations, too many symbols, values out of range
        return None


def find_factor(*sides: str) -> Any:
    """The number x with `a - b = x (c - d)` of sides a, b, c, d; None if it is 0, or there is none."""
    import sympy

    try:
        a, b, c, d = (parse_expression(side, " ".join(sides)) for side in sides)
    except Unparsed:
        return None
    left, right = (sympy.numer(sympy.together(side)) for side in (a - b, c - d))  # y = 1/x is xy = 1
    ratio = sympy.simplify(left / right)
    same = ratio.is_number and ratio.is_finite and ratio != 0 and left.free_symbols == right.free_symbols
    return ratio if same and left.free_symbols else None
