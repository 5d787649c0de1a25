"""GNU's OpenMP library, whose threads oneDNN and generated kernels share.

A team is the threads of a parallel region; each thread that runs kernels keeps a team.  A kernel
needs the number of threads for which it was created: with fewer threads, some of oneDNN's
primitives leave a part of their result unset.  The library starts fewer threads if the user limits
them, and ends the process if the system refuses a thread.  So each thread tests its first team.
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
SPIN_VARIABLE = "GOMP_SPINCOUNT"
# Polls of an idle thread before it sleeps; libgomp's default is 300,000.  On a busy machine, a
# polling thread takes the processor from the thread that it waits for.  Between two kernels only
# microseconds pass.
SPIN_COUNT = 3000
SOFT_PAUSE = 1  # omp_pause_soft


class _ThreadTeam(threading.local):
    """The team of the current thread.

    threads  number of threads; 1 without a team, 0 before the first kernel
    broken   whether the team belongs to the process from which this process was forked
    """

    threads = 0
    broken = False


team = _ThreadTeam()


@contextlib.contextmanager
def short_spins() -> Iterator[None]:
    """Let idle threads sleep early if the block is the first to load the library.

    The user's own environment variables take precedence.
    """
    is_set = SPIN_VARIABLE in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not is_set:
        os.environ[SPIN_VARIABLE] = str(SPIN_COUNT)  # the library reads it when it is loaded
    try:
        yield
    finally:
        if not is_set:
            os.environ.pop(SPIN_VARIABLE, None)  # another thread may have removed it


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library; raise OSError if it cannot be loaded."""
    with short_spins():
        return ctypes.CDLL(NAME)


def path() -> list[str]:
    """Return the path of the loaded library, which a linker may not find by its name."""
    try:
        library()
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    files = (line.split(maxsplit=5)[-1] for line in lines if f"/{NAME}" in line)
    return [os.path.realpath(file) for file in files][:1]


def available_threads(threads: int) -> int:
    """Return how many of `threads` a team of this thread can have; warn if it is fewer."""
    count, why = threads, ""
    while (attempt := _attempt(count))[0] < count:
        count, why = attempt
    if why:
        warn_once(f"{count} of {threads} threads are used: {why}", cause=why)
    return count


def start(threads: int) -> None:
    """Start a team of `threads` for the current thread; raise DeviceError if that fails."""
    count, why = _attempt(threads)
    if count < threads:
        raise DeviceError(
            f"this thread cannot have the {threads} threads that the function was compiled for: "
            f"{why}; compile it with num_threads=1"
        )


def _attempt(threads: int) -> tuple[int, str]:
    """Start a team of `threads` for the current thread.

    Return the number of threads, and "" or the reason why the team cannot have more.
    """
    if team.threads >= threads:
        return threads, ""
    try:
        gomp = library()
    except OSError:  # without the library no kernel that uses it can be loaded
        return threads, ""
    if team.broken:
        return 1, (
            "the process was forked, outside of Python, from one that has started threads (start "
            "processes by spawn)"
        )
    if not _can_start(threads - 1):
        return threads // 2, (
            "the system starts no more threads (check ulimit -u and -v, and a container's limit on "
            "processes)"
        )
    gomp.omp_set_dynamic(0)  # OMP_DYNAMIC would give fewer while the machine is busy
    with signals_blocked():
        gomp.GOMP_parallel(ctypes.CDLL(None).free, None, ctypes.c_uint(threads), 0)  # free(NULL)
    limit = gomp.omp_get_thread_limit() if gomp.omp_get_max_active_levels() else 1
    if limit < threads:
        return limit, "of OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS"
    team.threads = threads
    set_signal_stack()
    return threads, ""


def _can_start(count: int) -> bool:
    """Return whether the system starts `count` more threads that live at the same time."""
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, daemon=True) for _ in range(count)]
    started = 0
    try:
        for thread in threads:
            thread.start()
            started += 1
    except (RuntimeError, MemoryError):
        return False
    finally:
        release.set()
        for thread in threads[:started]:
            thread.join()
    return True


def _before_fork() -> None:
    """End the current thread's team, as a child would wait for threads of its parent."""
    try:
        # Do not load the library: if it is not loaded, there is no team.
        paused = ctypes.CDLL(NAME, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all(
            SOFT_PAUSE
        )
    except (OSError, AttributeError):  # it is not loaded, or older than OpenMP 5
        return
    if paused == 0:
        team.threads = 1


def _in_child() -> None:
    team.broken = team.broken or team.threads > 1
    team.threads = 0


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
