"""Fixtures of the tests of caches on disk."""

import shutil

import pytest
from cache_entries import ENTRIES, FIELDS, never
from new_process import begin, forget_measurements
from tuned_folder import tuned_folder

from minigraph.cache import Store, file


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    return Store(tmp_path / "a cache?#%20")


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "net.cache"
    file.write(path, FIELDS, ENTRIES, never)
    return path


@pytest.fixture(scope="module")
def tuned(run_folder):
    """A folder with a cache folder, in which all is measured and compiled, and a file with it."""
    return tuned_folder(run_folder)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A function that begins a process, with an empty cache folder or with a copy of one.

    The test itself begins with an empty one, and with the kernels of this process.
    """

    def start(copied=None, begin=begin):
        folder = tmp_path / "cache"
        shutil.rmtree(folder, ignore_errors=True)
        if copied:
            shutil.copytree(copied / "cache", folder)
        begin(monkeypatch, folder)
        return folder

    start(begin=forget_measurements)
    return start
