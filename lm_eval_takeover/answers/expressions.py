"""One expression against one expression, by their values.

A small grammar writes plain mathematics as LaTeX, which math_verify's grammar reads. Number literals are made without `sympify`.
"""

import logging
import math
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify.grader import should_treat_as_complex
from sympy.core.function import AppliedUndef

from lm_eval_takeover.answers.normalisation import find_closing, parse_rational, unwrap_text

PRECISION = 1e-6  # of a decimal, relative and absolute
EXACT = 1e-12  # the same of exact numbers; relative at a point
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

logging.getLogger("math_verify").setLevel(logging.CRITICAL)


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
    while match := re.search(r"(\\sqrt|\^)\s*+\(", text):
        end = find_closing(text, match.end() - 1, "(", ")")
        if end < 0:
            break
        text = f"{text[: match.end(1)]}{{{text[match.end() : end]}}}{text[end + 1 :]}"
    return text


class _Converter(_Latex2Sympy):  # type: ignore[misc]
    """latex2sympy's converter, with numbers made by their class and not by `sympify`, which would `eval` them."""

    def parse_number(self, text: str) -> Any:
        digits = text.replace(",", "").replace(" ", "")
        return sympy.Integer(int(digits)) if digits.isdigit() else sympy.Float(digits)


def parse_expressions(*texts: str) -> list[Any]:
    """The sympy expressions of texts that are compared, so all real or all complex; None for one that math_verify cannot read."""
    real = not any(map(should_treat_as_complex, texts))
    return [_parse(text, real) for text in texts]


@lru_cache(maxsize=4096)
def _parse(text: str, real: bool) -> Any:
    if _COMMON.search(text) or _LONG_WORD.search(_FUNCTION.sub("", unwrap_text(text))) or _MARKUP.search(_DUMMY.sub("", text)):
        return None
    latex = to_latex(text).replace("°", "")
    try:
        tidied = normalize_latex(latex, NormalizationConfig(malformed_operators=True, nits=True, boxed="none"))
        read = _Converter(is_real=real, config=ConversionConfig(lowercase_symbols=False)).parse(tidied)
    except Exception:  # the grammar raises bare Exceptions
        return None
    return _replace_calls(read) if hasattr(read, "free_symbols") else None


def lower_letters(*texts: str) -> tuple[str, ...]:
    """Letters in lower case, commands as they are: R and r may be one letter. As they are if one text has both."""
    letters = [set(re.sub(r"\\[A-Za-z]+", "", text)) for text in texts]
    if any(letter.isupper() and letter.lower() in those for those in letters for letter in those):
        return texts
    return tuple(re.sub(r"(\\[A-Za-z]+)|([A-Z])", lambda match: match[1] or match[2].lower(), text) for text in texts)


def _replace_calls(read: Any) -> Any:
    """Calls of unknown functions, as `f(0)` or `P(A)`, are letters; `i` is the imaginary unit where it is no index."""
    if isinstance(read, sympy.FiniteSet) and len(read) == 1:  # {a \\over b}
        read = read.args[0]
    if isinstance(read, sympy.UnevaluatedExpr):  # a greatest common divisor
        return read.doit()
    if isinstance(read, sympy.Basic):
        calls = {call: sympy.Symbol(str(call.func(*map(sympy.expand, call.args)))) for call in read.atoms(AppliedUndef)}
        read = read.xreplace(calls)
        if not read.has(sympy.Sum, sympy.Product):
            read = read.xreplace({letter: sympy.I for letter in read.free_symbols if letter.name == "i"})
    return read


def evaluate(text: str) -> float | None:
    """The value of a real number or infinity to 12 digits, letters replaced by those of a point; None for anything else."""
    number = parse_rational(text)
    try:
        value = float(_evaluate(parse_expressions(text)[0], 0, whole=False) if number is None else number)
    except (AttributeError, TypeError, OverflowError):
        return None
    return None if math.isnan(value) else float(f"{value:.12g}") * (abs(value) > _ZERO)


def is_same_value(left: Any, right: Any, tolerance: float) -> bool:
    """Whether two parsed expressions have one value, at a few points if they have letters."""
    unbounded = (sympy.oo, -sympy.oo, sympy.zoo, sympy.nan)
    if left.has(*unbounded) or right.has(*unbounded):  # oo - oo and 0 * oo compare as anything
        return left in (sympy.oo, -sympy.oo) and bool(left == right)
    stepped = (sympy.floor, sympy.ceiling, sympy.Sum, sympy.Product)
    whole = left.has(*stepped) or right.has(*stepped)
    letters = bool(left.free_symbols | right.free_symbols)
    rounded = not letters and (left.has(sympy.Float) or right.has(sympy.Float))
    compared = False
    for number in range((40 if whole else 4) if letters else 1):
        try:
            a, b = (_evaluate(side, number, whole) for side in (left, right))
            difference, size = abs(a - b), max(abs(a), abs(b))
            if not letters and difference <= EXACT * size:  # 2^1009 and 2^1009 + 1
                difference = abs((left - right).doit().evalf(20))
        except Exception:  # relations, values out of range
            return bool(left == right)
        if difference is sympy.nan or a.is_real != b.is_real or (number % 2 and not (whole or a.is_real)):
            continue  # roots and logarithms of negative numbers
        allowed = EXACT * size if letters else max(tolerance, (PRECISION if rounded else EXACT) * min(1, size))
        if difference > max(allowed, _ZERO):
            return False
        compared = True
    return compared


def _evaluate(expression: Any, number: int, whole: bool) -> Any:
    """The value at a point: positive for an even `number`, else negative. Letters like n are integers if `whole`."""
    point = {}
    for letter in expression.free_symbols:
        code = int.from_bytes(letter.name.encode()) * (number + 1) % 997
        integer = whole and (letter.name in "ijklmnNpqr" or number % 4 == 3)  # x may be any number
        value = sympy.Integer(number + 1 + code % 17) if integer else sympy.Rational((-1) ** number * (code + 3), 101)
        point[letter] = value * (1 + sympy.I) if letter.is_real is False else value
    # Sums and floors need exact values: rounding puts a value near 2 on either side of its floor.
    return expression.subs(point).doit().evalf(20) if whole else expression.evalf(20, subs=point)


def find_factor(*sides: str) -> Any:
    """The number x with `a - b = x (c - d)` of sides a, b, c, d; None if it is 0, or there is none."""
    parsed = parse_expressions(*sides)
    if any(side is None for side in parsed):
        return None
    a, b, c, d = parsed
    left, right = (sympy.numer(sympy.together(side)) for side in (a - b, c - d))  # y = 1/x is xy = 1
    ratio = sympy.simplify(left / right)
    same = ratio.is_number and ratio.is_finite and ratio != 0 and left.free_symbols == right.free_symbols
    return ratio if same and left.free_symbols else None
