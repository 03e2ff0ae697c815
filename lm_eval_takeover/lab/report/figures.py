"""Makes the figures of `analyze` and `compare` safe parts of a page, in the page's own colours."""

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from markupsafe import Markup

from lm_eval_takeover.errors import ArgumentError
from lm_eval_takeover.storage.regular_files import read_bounded

CAPTIONS: Mapping[str, str] = {
    "concentration": "How unevenly the score lies on the tokens of a sample",
    "lorenz": "Lorenz curves: the share of the score on the smallest scores",
    "position": "Where in a sample the largest 1 % of the scores stand",
    "choices": "Where the guide's first choice stands under the base, and how far their likeliest tokens coincide",
    "entropy_by_js": "Mean entropy of both models by their Jensen-Shannon divergence",
    "guides": "How guides differ from the base, and how far their decisions coincide",
    "checkpoints": "How a guide differs from the base, by step of its training",
    "overlap": "How far the largest scores coincide with the largest entropies",
    "planning": "How often planning and execution tokens stand at peaks and takeovers (1: as often as among all tokens)",
    "failure": "Whether the largest scores predict a wrong answer",
    "signals": "The largest scores of correct and of incorrect samples",
    "budget": "Accuracy against the share of tokens taken over",
    "rates": "Realized rate of each problem",
    "flips": "Problems that only a run solves (rescued), or only the base (harmed)",
    "cross": "Cross-sampling: accuracy against the share that is replaced",
    "frontier": "Accuracy against cost, by method; rest the pointer on a point to see its name",
    "places": "Where in an answer the takeovers stand",
    "ranks": "Rank of the tokens that takeovers put in, under the model that writes by default",
}
_LARGEST = 2**24  # bytes of a figure
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_ELEMENTS = {"svg", "g", "defs", "path", "use", "rect", "clipPath", "text", "tspan", "line", "circle", "title"}
_ATTRIBUTES = {
    *("id", "d", "x", "y", "width", "height", "viewBox", "transform", "fill", "stroke", "stroke-width", "opacity"),
    *("stroke-dasharray", "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-opacity", "fill-opacity"),
    *("clip-path", "text-anchor", "font-size", "x1", "x2", "y1", "y2", "cx", "cy", "r"),
}
_INKS = {"#000000": "currentColor", "#333333": "currentColor", "#262626": "currentColor", "#ffffff": "none"}


def read_figure(path: Path) -> Markup:
    """A figure's file as `clean_figure` has it. Raises ArgumentError where it is no SVG."""
    try:
        return clean_figure(read_bounded(path, _LARGEST), path.stem, path.stem)
    except (OSError, ElementTree.ParseError, RecursionError) as error:
        raise ArgumentError(f"'{path}' cannot be read: {error}; run lm-eval-takeover analyze again") from error
    except ValueError as error:
        raise ArgumentError(f"'{path}' is not an SVG file; run lm-eval-takeover analyze again") from error


def clean_figure(svg: bytes, prefix: str, name: str) -> Markup:
    """An SVG to stand inside a page: known elements and attributes only, no styles or scripts, ids that begin with `prefix`."""
    kept = _keep(ElementTree.fromstring(svg), prefix)
    if kept is None or kept.tag != "svg":
        raise ValueError("no svg element")
    for size in ("width", "height"):
        kept.attrib.pop(size, None)  # as wide as its column
    kept.attrib |= {"role": "img", "aria-label": CAPTIONS.get(name, name)}
    return Markup(ElementTree.tostring(kept, encoding="unicode"))


def _keep(element: ElementTree.Element, prefix: str) -> ElementTree.Element | None:
    if not isinstance(element.tag, str):  # a comment
        return None
    name = element.tag.removeprefix(f"{{{_SVG}}}")
    if name not in _ELEMENTS:
        return None
    kept = ElementTree.Element(name, dict(_keep_attributes(element, prefix)))
    kept.text, kept.tail = element.text, element.tail
    for child in element if name != "title" else ():  # in a page, elements inside a title would be those of HTML
        if (inner := _keep(child, prefix)) is not None:
            kept.append(inner)
    return kept


def _keep_attributes(element: ElementTree.Element, prefix: str) -> list[tuple[str, str]]:
    attributes = {name: value for name, value in element.attrib.items() if name != "style"}
    for declaration in element.get("style", "").split(";"):  # a policy against styles in attributes would drop them
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font" and (size := re.search(r"([\d.]+)px", value)):
            name, value = "font-size", size[1]
        attributes[name] = value
    kept = []
    for name, value in attributes.items():
        if name in ("href", f"{{{_XLINK}}}href") and value.startswith("#"):
            kept.append(("href", f"#{prefix}-{value[1:]}"))
        elif name == "id":
            kept.append(("id", f"{prefix}-{value}"))
        elif name in _ATTRIBUTES and (found_value := _keep_value(value, prefix)) is not None:
            kept.append((name, found_value))
    return kept


def _keep_value(value: str, prefix: str) -> str | None:
    """A value that names nothing outside of the figure."""
    if "url" in value.lower():
        inside = re.fullmatch(r"url\(#([\w.-]+)\)", value)
        return f"url(#{prefix}-{inside[1]})" if inside else None
    return _INKS.get(value.lower(), value)
