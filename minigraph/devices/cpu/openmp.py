"""GNU's OpenMP library, whose threads oneDNN and generated kernels share.

A team is the threads of one parallel region; each thread that runs kernels has a team of its own,
which stays.  What a kernel was made for, its team has to have: with fewer threads some of oneDNN's
primitives leave a part of their result unset.  The library gives fewer where the user limits them,
and ends the process where the system starts no more, so the first team of a thread is tried out.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading

from minigraph import options
from minigraph.errors import DeviceError, warn_once
from minigraph.platform.signals import give_handlers_room, kept_from_threads

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


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library; OSError if it cannot be loaded.

    Whoever loads it first decides, and a user who has set its variables is obeyed.
    """
    said = SETTING in os.environ or "OMP_WAIT_POLICY" in os.environ
    if not said:
        os.environ[SETTING] = str(SPINS)  # which it reads once, when it is loaded
    try:
        return ctypes.CDLL(NAME)
    finally:
        if not said:
            os.environ.pop(SETTING, None)  # another thread may have been here too


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
    with kept_from_threads():
        given = _team_size(gomp, threads)
    if given < threads:
        return given, "of OMP_THREAD_LIMIT or OMP_MAX_ACTIVE_LEVELS"
    here.threads = threads
    give_handlers_room()
    return threads, ""


class _Semaphore:
    """A semaphore of the C library, whose functions threads can run that know no Python."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None)
        self.memory = ctypes.create_string_buffer(64)
        self.libc.sem_init(self.memory, 0, 0)

    @property
    def value(self) -> int:
        found = ctypes.c_int()
        self.libc.sem_getvalue(self.memory, ctypes.byref(found))
        return found.value


def _startable(count: int) -> bool:
    """Return whether the system starts so many more threads; they wait for one another, and end."""
    waiting = _Semaphore()
    libc = waiting.libc
    attributes = ctypes.create_string_buffer(128)
    libc.pthread_attr_init(attributes)
    stack = options.openmp_stack()
    if stack is not None:
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(stack))
    started: list[ctypes.c_ulong] = []
    try:
        for _ in range(count):
            thread = ctypes.c_ulong()
            if libc.pthread_create(ctypes.byref(thread), attributes, libc.sem_wait, waiting.memory):
                break
            started.append(thread)
    finally:
        for _ in started:
            libc.sem_post(waiting.memory)
        for thread in started:
            libc.pthread_join(thread, None)
        libc.pthread_attr_destroy(attributes)
    return len(started) == count


def _team_size(gomp: ctypes.CDLL, threads: int) -> int:
    """Start a team of so many threads, and return how many it has: each of them adds one."""
    counted = _Semaphore()
    gomp.GOMP_parallel(counted.libc.sem_post, counted.memory, ctypes.c_uint(threads), 0)
    return counted.value


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
