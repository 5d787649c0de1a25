"""Memory that gets its pages while something else is done."""

import mmap
import platform
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from minigraph.devices.pages import PART, populating

SIZE = 4 * PART
KERNEL = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


def resident():
    """Return the bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(KERNEL < (5, 14), reason="Linux populates memory from 5.14 on")
def test_new_memory_gets_its_pages():
    memory = np.empty(SIZE, np.uint8)
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
