"""What tests of all commands share: the parser, which takes long to build."""

import pytest

from lm_eval_takeover.cli import build_parser


@pytest.fixture(scope="session")
def parse():
    """Reads the words of a call."""
    parser = build_parser()
    return lambda *words: parser.parse_args([*words])
