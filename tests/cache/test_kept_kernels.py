"""Kernels that runs of the tests keep for later runs."""

import kept_kernels
import pytest
from at_once import in_threads
from cache_entries import change, entry, kernel, newer

from minigraph.cache import Store


@pytest.fixture
def kept(tmp_path):
    """The store of the kernels that are kept, none so far."""
    (tmp_path / "kept").mkdir(mode=0o700)
    return Store(tmp_path / "kept")


def run(folder, *entries):
    """Return the store of a run that has made entries."""
    store = Store(folder)
    assert store.keep(entries, newer)
    return store


def test_runs_that_end_together_keep_the_kernels_of_each(kept, tmp_path):
    runs = [run(tmp_path / f"{i}", kernel(f"mg_{i}", bytes([i])), entry("a")) for i in range(4)]
    in_threads(*[lambda one=one: kept_kernels.merge(one.path, kept.path) for one in runs])
    assert kept.entries() == []  # measurements are of one run
    assert kept.entries("jit") == [kernel(f"mg_{i}", bytes([i])) for i in range(4)]
    (tmp_path / "later").mkdir(mode=0o700)
    later = Store(tmp_path / "later")
    kept_kernels.copy(kept.path, later.path)
    assert later.entries("jit") == kept.entries("jit")
    assert later.verify() == []


def test_above_the_limit_the_least_recently_used_go(kept, tmp_path):
    for i in range(8):
        one = run(tmp_path / f"{i}", kernel(f"mg_{i}", bytes([i]) * 50_000))
        change(one.path, "UPDATE entries SET used = ?", 100 - i)
        kept_kernels.merge(one.path, kept.path, limit=300_000)
    left = [one.subject for one in kept.entries("jit")]
    assert len(left) > 2 and left == [f"mg_{i}" for i in range(len(left))]
    assert kept.verify() == []
