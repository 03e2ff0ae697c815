"""One progress bar while the weights of several models are loaded."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tqdm import tqdm
from transformers.utils import logging

_OWN = "Loading weights"  # what transformers calls its bar, one per model


@contextlib.contextmanager
def one_loading_bar(models: int) -> Iterator[None]:
    """Within the `with` block transformers' bars are one over so many models; other bars, those of downloads, stay theirs."""
    quiet = models < 2 or not logging.is_progress_bar_enabled()
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"
    with tqdm(total=models, desc=f"{_OWN} of {models} models", disable=quiet, bar_format=form) as bar:

        def make_bar(make: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
            if quiet or options.get("desc") != _OWN:
                return make(*arguments, **options)
            return _count_shares(list(arguments[0]), bar)

        previous = logging.set_tqdm_hook(make_bar)
        try:
            yield
        finally:
            logging.set_tqdm_hook(previous)


def _count_shares(items: list[Any], bar: Any) -> Iterator[Any]:
    """These items, each of which moves the bar by its share of one model."""
    before = round(bar.n)
    for number, item in enumerate(items, 1):
        yield item
        bar.n = before + number / len(items)  # exact, where a sum of shares may pass the total
        bar.update(0)
