"""How wide a pass may be, in new tokens a row: buffers and drafts are made for no more."""

LONGEST = 64  # tokens of a draft, at most
_MOST_LOGITS = 2**26  # rows x tokens x vocabulary of a draft, at most: 256 MiB


def longest_draft(rows: int, vocab: int) -> int:
    """The most tokens of a draft whose logits are to be held."""
    return max(1, min(LONGEST, _MOST_LOGITS // (rows * vocab)))
