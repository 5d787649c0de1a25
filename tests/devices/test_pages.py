"""Memory that gets its pages while something else is done."""

import mmap
import threading
import time
import weakref
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from minigraph.devices import host
from minigraph.devices.host import MAX_SIZE_FACTOR, TOUCHED_PART, HostMemory

SIZE = 4 * TOUCHED_PART


@pytest.fixture
def new_memory(monkeypatch):
    """Let memory have no pages yet; that of NumPy may be what other arrays had."""
    monkeypatch.setattr(
        host, "aligned_empty", lambda spec: np.frombuffer(mmap.mmap(-1, spec.nbytes), np.uint8)
    )


def resident():
    """Return the bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def touched_since(before, least):
    """Return the bytes that have come since then, which may take some time."""
    until = time.monotonic() + 30
    while resident() - before < least and time.monotonic() < until:
        time.sleep(0.001)
    return resident() - before


def touching():
    return [thread for thread in threading.enumerate() if thread.name.startswith("minigraph touch")]


def test_memory_of_an_unknown_size_gets_the_pages_that_are_foreseen(new_memory):
    before = resident()
    with closing(HostMemory(SIZE)):
        assert (
            SIZE - TOUCHED_PART <= touched_since(before, SIZE - TOUCHED_PART) < SIZE + TOUCHED_PART
        )


def test_an_arena_gets_the_rest_of_its_pages_once_its_size_is_known(new_memory):
    before = resident()
    with closing(HostMemory(SIZE)) as memory:
        (array,) = memory.arenas(2 * SIZE + 5)
        assert array.nbytes == 2 * SIZE + 5
        assert (
            2 * SIZE - TOUCHED_PART
            <= touched_since(before, 2 * SIZE - TOUCHED_PART)
            < 2 * SIZE + TOUCHED_PART
        )


def test_an_arena_keeps_what_is_written_once_the_work_has_ended(new_memory):
    with closing(HostMemory(SIZE)) as memory:
        (array,) = memory.arenas(SIZE)
    array[:] = 1
    assert array.all() and not touching()


@pytest.mark.parametrize("size", [0, TOUCHED_PART - 1])
def test_little_memory_needs_no_thread(size):
    with closing(HostMemory(size)):
        assert not touching()


def test_nothing_goes_on_after_an_error():
    with pytest.raises(KeyError), closing(HostMemory(SIZE)):
        raise KeyError
    assert not touching()


def test_where_no_thread_starts_memory_is_left_alone(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with closing(HostMemory(SIZE)) as memory:
        (array,) = memory.arenas(SIZE)
    array[:] = 1
    assert array.all()


def test_memory_that_was_foreseen_is_nobodys_if_it_is_too_small_or_the_work_has_ended():
    with closing(HostMemory(TOUCHED_PART)) as memory:
        assert not memory.arenas(MAX_SIZE_FACTOR * TOUCHED_PART + 1)
    assert not memory.arenas(1)


def test_where_memory_is_missing_none_is_foreseen(monkeypatch):
    def none(spec):
        raise MemoryError

    monkeypatch.setattr(host, "aligned_empty", none)
    with closing(HostMemory(SIZE)) as memory:
        assert not memory.arenas(1)


def test_memory_that_is_dropped_is_gone_although_the_work_goes_on():
    with closing(HostMemory(SIZE)) as memory:
        memory_reference = weakref.ref(memory.arrays[0].base)
        memory.close()
        until = time.monotonic() + 30
        while memory_reference() is not None and time.monotonic() < until:
            time.sleep(0.001)
        assert memory_reference() is None
        assert not memory.arenas(1)
