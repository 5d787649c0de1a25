"""Fixtures of the tests of data."""

import pytest
from data_sets import threads


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert threads() == []
