"""lm-eval's log-likelihood requests as token ids: windows over long texts, and texts cut to the context."""

import logging
from collections.abc import Sequence

from lm_eval import utils

logger = logging.getLogger(__name__)


def list_rolling_windows(
    texts: Sequence[list[int]], *, prefix: int, max_length: int
) -> list[tuple[int, list[int], list[int]]]:
    """`(index of the text, context ids, continuation ids)`: windows as `hf` cuts them, in which every token is scored once."""
    windows = []
    for index, tokens in enumerate(texts):
        rolling = utils.get_rolling_token_windows(
            token_list=tokens, prefix_token=prefix, max_seq_len=max_length, context_len=1
        )
        windows += [(index, *utils.make_disjoint_window(window)) for window in rolling]
    return windows


def cut_to_context(
    texts: Sequence[tuple[list[int], list[int]]], *, prefix: int, max_length: int
) -> dict[int, tuple[list[int], list[int]]]:
    """`(prompt, continuation)` by index of `(context, continuation)`, at least a token each; an empty context is `prefix`.

    As `hf` cuts them, from the left: `max_length` tokens are read, the last one of a continuation is only predicted. What adds no
    token is left out. Logs how many texts are cut.
    """
    kept, cut = {}, 0
    for index, (context, continuation) in enumerate(texts):
        if not continuation:
            continue
        scored = continuation[-max_length:]
        whole = [*(context or [prefix]), *continuation][-(max_length + 1) :]
        kept[index] = whole[: len(whole) - len(scored)], scored
        cut += len(whole) < len(context) + len(continuation)
    if cut:
        logger.warning(
            "%d of %d texts are longer than the context of %d tokens; truncated from the left",
            cut, len(texts), max_length,
        )  # fmt: skip
    return kept
