"""What another thread compiles: waited for a while, with its errors, and in a forked child."""

import os
import sys
import threading

import pytest

from minigraph.function.recompiling import NICENESS, Recompiling


def test_a_caller_waits_no_longer_than_it_says():
    may_end = threading.Event()
    work = Recompiling(lambda: may_end.wait(10) and "made")
    assert not work.done(0.001)
    may_end.set()
    assert work.done(None) and work.result() == "made"


def test_an_error_of_the_work_is_the_callers():
    work = Recompiling(lambda: 1 // 0)
    assert work.done(10)
    with pytest.raises(ZeroDivisionError):
        work.result()


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no niceness of its own")
def test_the_thread_gives_way_to_others():
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    work = Recompiling(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    assert work.done(10) and work.result() == max(mine, NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_begins_again():
    parent = os.getpid()
    may_end = threading.Event()
    work = Recompiling(lambda: os.getpid() != parent or may_end.wait(10))
    child = os.fork()
    if child == 0:
        os._exit(0 if work.done(10) and work.result() is True else 1)
    may_end.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert work.done(10)
