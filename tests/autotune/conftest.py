"""Fixtures of the tests of tuning."""

import pytest
from new_process import forget_measurements
from problems import Clock

from minigraph.cache import Store


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache")


@pytest.fixture
def new_process(monkeypatch):
    """Clear measurements and counters; return a function that clears them again."""
    forget_measurements(monkeypatch)
    return lambda: forget_measurements(monkeypatch)
