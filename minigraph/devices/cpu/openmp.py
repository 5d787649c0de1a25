"""GNU's OpenMP library, whose threads oneDNN and generated kernels share.

A team is the threads of one parallel region; each thread that runs kernels has a team of its own,
which stays.  What a kernel was made for, its team has to have: with fewer threads some of oneDNN's
primitives leave a part of their result unset.  The library gives fewer where the user limits them,
and ends the process where the system starts no more, so the first team of a thread is tried out.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from minigraph.errors import DeviceError, warn_once
from minigraph.platform.signals import set_signal_stack, signals_blocked

NAME = "libgomp.so.1"
SETTING = "GOMP_SPINCOUNT"
# How often an idle thread looks for work before it sleeps, instead of the library's 300,000 times
# (libgomp's manual): where other programs want the processors too, a thread that waits in a loop
# keeps the one it waits for from running.  Kernels follow one another within microseconds.
SPINS = 3000
PAUSE = 1  # omp_pause_soft


class _Here(threading.local):
    """What is known of the current thread.

    threads  that its team has; 1 where it has none, 0 before kernels run in it
    broken   whether its team is one of the process that this one was forked from
    """

    threads = 0
    broken = False


here = _Here()


@contextlib.contextmanager
def brief_spins() -> Iterator[None]:
    """Let idle threads soon sleep if the library is loaded within the context.

    Whoever loads it first decides, and a user who has set its variables is obeyed.
    """
    said = SETTING in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not said:
        os.environ[SETTING] = str(SPINS)  # which it reads once, when it is loaded
    try:
        yield
    finally:
        if not said:
            os.environ.pop(SETTING, None)  # another thread may have been here too


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library; OSError if it cannot be loaded."""
    with brief_spins():
        return ctypes.CDLL(NAME)


def path() -> list[str]:
    """Return where the library is that is loaded, which a linker may not find by its name."""
    try:
        library()
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = (line.split(maxsplit=5)[-1] for line in lines if f"/{NAME}" in line)
    return [os.path.realpath(file) for file in files][:1]


def available(threads: int) -> int:
    """Return how many threads a team can have here, at most `threads`; warn if it is fewer."""
    count, why = threads, ""
    while (attempt := _attempt(count))[0] < count:
        count, why = attempt
    if why:
        warn_once(f"{count} of {threads} threads are used: {why}", cause=why)
    return count


def start(threads: int) -> None:
    """Start a team of so many for the current thread; DeviceError if it cannot have them."""
    count, why = _attempt(threads)
    if count < threads:
        raise DeviceError(
            f"this thread cannot have the {threads} threads that the function was compiled for: "
            f"{why}; compile it with num_threads=1"
        )


def _attempt(threads: int) -> tuple[int, str]:
    """Start a team of so many for the current thread.

    Return their number; or fewer, which may be had, and why not as many.
    """
    if here.threads >= threads:
        return threads, ""
    try:
        gomp = library()
    except OSError:  # then no kernel can be loaded that would use it
        return threads, ""
    if here.broken:
        return 1, (
            "it comes from a process that has started threads, and was forked in a way that Python "
            "did not see (start processes by spawn)"
        )
    if not _startable(threads - 1):
        return threads // 2, (
            "the system starts no more (ulimit -u and -v, and a container's limit on processes, "
            "may be the reason)"
        )
    gomp.omp_set_dynamic(0)  # OMP_DYNAMIC would give fewer while the machine is busy
    with signals_blocked():
        gomp.GOMP_parallel(ctypes.CDLL(None).free, None, ctypes.c_uint(threads), 0)  # free(NULL)
    allowed = gomp.omp_get_thread_limit() if gomp.omp_get_max_active_levels() else 1
    if allowed < threads:
        return allowed, "of OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS"
    here.threads = threads
    set_signal_stack()
    return threads, ""


def _startable(count: int) -> bool:
    """Return whether the system starts so many more threads; all of them live at the same time."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(count)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except (RuntimeError, MemoryError):
        return False
    finally:
        done.set()
        for thread in threads[:started]:
            thread.join()
    return True


def _before_fork() -> None:
    """End the current thread's team: a child would wait for threads that only its parent has."""
    try:
        # Not `library`: whoever has loaded it may have started a team here.
        paused = ctypes.CDLL(NAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all(PAUSE)
    except (OSError, AttributeError):  # it is not loaded, or older than OpenMP 5
        return
    if paused == 0:
        here.threads = 1


def _in_child() -> None:
    here.broken = here.broken or here.threads > 1
    here.threads = 0


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
