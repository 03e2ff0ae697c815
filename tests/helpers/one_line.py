"""Errors of users: one line that names what is wrong."""

from contextlib import contextmanager

import pytest


@contextmanager
def one_line(error, *texts):
    """The block ends with such an error, whose message is one line with all these texts."""
    with pytest.raises(error) as caught:
        yield
    said = str(caught.value)
    assert all(text in said for text in texts) and "\n" not in said, said
