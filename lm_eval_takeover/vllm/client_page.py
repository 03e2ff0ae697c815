"""The page at `/`: one file, which loads nothing and may speak with this server alone."""

from functools import cache
from html import escape
from pathlib import Path
from string import Template

from lm_eval_takeover.escaping import make_page_policy
from lm_eval_takeover.method.policy import DIRECTIONS
from lm_eval_takeover.vllm.served_engine import ServedEngine

_FOLDER = Path(__file__).parent / "page"
_TOKENS = 200  # that the page asks for at first


def render(engine: ServedEngine, *, keyed: bool) -> tuple[bytes, dict[str, str]]:
    """The page and its headers. keyed: whether it asks for a key."""
    policy, style, script = engine.policy, _read("page.css"), _read("page.js")
    host, donor = DIRECTIONS[policy.direction]
    gate = policy.gate
    gated = f", tau={gate.tau:g}, kappa={gate.kappa:g}, window={gate.window}" if gate is not None else ""
    values = {
        "host": host,
        "donor": donor,
        "summary": f"policy={policy.name}{gated}. Prompt and answer have up to {engine.length} tokens.",
        "length": engine.length,
        "tokens": min(_TOKENS, engine.length),
        "tau": f"{gate.tau:g}" if gate is not None else "",
        "gated": "" if gate is not None else "hidden",
        "keyed": "" if keyed else "hidden",
        "example": engine.example,
    }
    texts = {name: escape(str(value)) for name, value in values.items()}
    page = Template(_read("page.html")).substitute(texts, style=style, script=script)
    own = ("connect-src 'self'", "frame-ancestors 'none'")
    return page.encode(), {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": make_page_policy([script], style, *own),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
