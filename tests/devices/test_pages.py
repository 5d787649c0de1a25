"""Memory that gets its pages while something else is done."""

import mmap
import platform
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from minigraph.devices import pages
from minigraph.devices.pages import MOST, PART, ahead, populating

SIZE = 4 * PART
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def resident():
    """Return the bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def fresh(nbytes):
    """Return memory that has no pages yet; that of NumPy may be what other arrays had."""
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


@pytest.mark.skipif(KERNEL < (5, 14), reason="Linux populates memory from 5.14 on")
def test_new_memory_gets_its_pages():
    memory = fresh(SIZE)
    before, until = resident(), time.monotonic() + 30
    with populating(memory):
        while resident() - before < SIZE - PART and time.monotonic() < until:
            time.sleep(0.001)
    assert resident() - before >= SIZE - PART


def test_memory_keeps_what_it_holds():
    memory = np.arange(SIZE // 8)
    with populating(memory):
        memory[5:] += 1
    np.testing.assert_array_equal(memory[:5], range(5))
    np.testing.assert_array_equal(memory[5:], np.arange(6, SIZE // 8 + 1))


@pytest.mark.parametrize("size", [0, PART - 1])
def test_little_memory_needs_no_thread(size):
    before = threading.active_count()
    with populating(np.empty(size, np.uint8)):
        assert threading.active_count() == before


def test_nothing_goes_on_after_an_error():
    with pytest.raises(KeyError), populating(np.empty(SIZE, np.uint8)):
        raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name == "minigraph populates"]


def test_where_no_thread_starts_memory_is_left_alone(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    done = []
    with populating(np.empty(SIZE, np.uint8)):
        done.append(1)
    assert done


@pytest.mark.skipif(KERNEL < (5, 14), reason="Linux populates memory from 5.14 on")
def test_memory_of_an_unknown_size_gets_the_pages_that_are_foreseen(monkeypatch):
    monkeypatch.setattr(pages, "aligned_empty", lambda spec: fresh(spec.nbytes))
    before, until = resident(), time.monotonic() + 30
    with ahead(SIZE) as memory:
        while resident() - before < SIZE - PART and time.monotonic() < until:
            time.sleep(0.001)
        (array,) = memory.arenas(SIZE + 5)
    assert array.nbytes == SIZE + 5
    assert SIZE - PART <= resident() - before < SIZE + PART


def test_memory_that_was_foreseen_is_nobodys_if_it_is_too_small_or_the_work_has_ended():
    with ahead(PART) as memory:
        assert not memory.arenas(MOST * PART + 1)
    assert not memory.arenas(1)


def test_where_memory_is_missing_none_is_foreseen(monkeypatch):
    def none(spec):
        raise MemoryError

    monkeypatch.setattr(pages, "aligned_empty", none)
    with ahead(SIZE) as memory:
        assert not memory.arenas(1)


def test_memory_that_is_dropped_is_gone_although_the_work_goes_on():
    with ahead(SIZE) as memory:
        gone = weakref.ref(memory.arrays[0].base)
        memory.drop()
        until = time.monotonic() + 30
        while gone() is not None and time.monotonic() < until:
            time.sleep(0.001)
        assert gone() is None
        assert not memory.arenas(1)
