"""What the tests of what is kept on disk share."""

import pytest
from cache_files import ENTRIES, FIELDS, never

from minigraph.cache import Measurements, file


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    return Measurements(tmp_path / "a cache?#%20")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "net.cache"
    file.write(path, FIELDS, ENTRIES, never)
    return path
