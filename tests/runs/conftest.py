"""Fixtures of the tests of runs."""

import pytest


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"
