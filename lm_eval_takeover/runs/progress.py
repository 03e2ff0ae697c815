"""The progress bars of a run: finished samples, tokens and their speed."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from tqdm import tqdm

_REDRAW = 1.0  # seconds


class _Bar(tqdm):  # type: ignore[misc]
    """A bar whose time left is what it is told; None: tqdm's own, by the samples that are done."""

    seconds_left: float | None = None

    @property
    def format_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = super().format_dict
        left = told["total"] - told["n"]
        return told | ({"rate": left / self.seconds_left} if self.seconds_left and left else {})


class Progress:
    """A bar of samples, with tokens and their speed, by which it tells the time left; `kept` of `total` were finished before.

    bars: tqdm's options of all bars of this process; its label stands before this one's.
    """

    def __init__(
        self,
        total: int,
        kept: int = 0,
        *,
        quiet: bool,
        label: str | None = None,
        unit: str = "sample",
        bars: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        options: dict[str, Any] = {"total": total, "initial": kept, "unit": unit, "disable": quiet, **bars}
        shown = ": ".join(filter(None, (bars.get("desc"), label))) or "Running generate_until requests"
        self._bar = _Bar(**options | {"desc": shown})
        self._asked, self._kept, self._ended, self._tokens = total - kept, kept, 0, 0
        self._taken: int | None = 0
        self._written, self._taken_over = 0, 0  # tokens of finished samples
        self._started = self._drawn = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.set_postfix_str(self.describe())
        self._bar.close()

    def count_tokens(self, count: int, taken: int | None = None) -> None:
        """So many tokens more were emitted, and so many of them by takeovers, whether or not their samples are finished."""
        self._tokens += count
        self._taken = None if self._taken is None or taken is None else self._taken + taken
        now = time.perf_counter()
        if now - self._drawn >= _REDRAW:
            self._drawn = now
            self._bar.set_postfix_str(self.describe())

    def finish(self, tokens: int = 0, takeovers: int = 0) -> None:
        """A sample of this process is finished; it has so many tokens, and so many of them by takeovers."""
        self._ended += 1
        self._written, self._taken_over = self._written + tokens, self._taken_over + takeovers
        self._bar.set_postfix_str(self.describe(), refresh=False)
        self._bar.update()

    def describe(self) -> str:
        """Tokens, speed and realized rate of this process, and what was finished before it.

        The rate is that of all tokens, unfinished texts too, since texts without takeovers may be the longer ones. It is that
        of finished samples where an engine does not say who wrote a token.
        """
        speed = self._tokens / max(time.perf_counter() - self._started, 1e-9)
        if self._written and speed:
            # As if all texts were as long as those that have ended, the shorter ones; but a tenth of the tokens is always left.
            total = self._asked * self._written / self._ended
            self._bar.seconds_left = max(total - self._tokens, 0.1 * self._tokens) / speed
        parts = [f"{self._tokens:,} tokens, {speed:,.0f}/s"]
        if self._taken is not None and self._tokens:
            parts.append(f"realized rate {self._taken / self._tokens:.1%}")
        elif self._written:
            parts.append(f"realized rate {self._taken_over / self._written:.1%} of finished samples")
        if self._kept:
            parts.append(f"{self._kept:,} samples from before")
        return ", ".join(parts)
