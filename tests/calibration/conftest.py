"""The calibration that the tests of this folder change and write."""

import pytest
from helpers.calibrations import small_calibration


@pytest.fixture
def made():
    return small_calibration()
