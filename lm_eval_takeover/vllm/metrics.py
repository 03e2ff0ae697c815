"""Prometheus counters of takeovers, which vLLM's `/metrics` shows beside its own; nothing is counted without the package."""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

_COUNTERS = {
    "tokens": "Tokens written.",
    "takeovers": "Tokens that the donor wrote: takeovers.",
    "base_passes": "Forward passes of the base. With drafts, each drafts a token.",
    "guide_passes": "Forward passes of the guide. With drafts, each verifies several tokens.",
}


@cache
def _open_counters() -> Mapping[str, Any]:
    if find_spec("prometheus_client") is None:
        return {}
    from prometheus_client import Counter

    counters: dict[str, Any] = {name: Counter(f"takeover:{name}", meaning) for name, meaning in _COUNTERS.items()}
    meaning = "Requests to the routes that generate, by status; 499: the client has gone."
    return counters | {"requests": Counter("takeover:requests", meaning, ["status"])}


def count_sample(told: Mapping[str, Any], passes: Mapping[str, int]) -> None:
    """A sample that is done: its `takeover`, and the passes by role."""
    counts = {name: told[name] for name in ("tokens", "takeovers")}
    counts |= {f"{role}_passes": count for role, count in passes.items()}
    for name, count in counts.items() if _open_counters() else ():
        _open_counters()[name].inc(count)


def count_request(status: int) -> None:
    if _open_counters():
        _open_counters()["requests"].labels(str(status)).inc()
