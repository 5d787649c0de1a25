"""Signals that wait, for work that must not be interrupted, and the memory of their handlers."""

from __future__ import annotations

import ctypes
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Those whose handlers may raise: Ctrl-C, the end that a scheduler or a terminal asks for, alarms.
RAISING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
ROOM = 1 << 16  # bytes for a handler; the registers that it interrupts take up to 12 KiB
DISABLED = 2  # SS_DISABLE


class _Stack(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


_rooms: list[ctypes.Array[ctypes.c_char]] = []  # kept as long as the process


def give_handlers_room() -> None:
    """Let handlers of signals run on memory of their own, if the current thread is the main one.

    Without it the system saves registers at the stack pointer, and for a while that is no place for
    them: oneDNN's product for AVX2 sets it to a buffer on the heap, and what lies before that was
    overwritten.  Python's handlers run on such memory where there is some (SA_ONSTACK).  Signals
    to a process reach its main thread unless that blocks them.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return
    libc, found = ctypes.CDLL(None), _Stack()
    libc.sigaltstack(None, ctypes.byref(found))
    if found.flags & DISABLED:  # faulthandler, for one, has set up its own
        _rooms.append(ctypes.create_string_buffer(ROOM))
        made = _Stack(ctypes.addressof(_rooms[-1]), 0, ROOM)
        libc.sigaltstack(ctypes.byref(made), None)


@contextmanager
def held() -> Iterator[None]:
    """Let the handlers of signals, such as that of Ctrl-C, wait until the end of the block.

    Python runs handlers in the main thread only: in another thread there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    restore: list[Callable[[], Any]] = []
    try:
        for number in RAISING:
            handler = signal.getsignal(number)
            if callable(handler):
                restore.append(functools.partial(signal.signal, number, handler))
                signal.signal(number, lambda number, frame: caught.append(number))
        yield
    finally:
        _call_all([*restore, lambda: _call_all([*(functools.partial(_handle, n) for n in caught)])])


def _handle(number: int) -> None:
    """Do what is to be done for a signal now: an earlier handler may have changed that."""
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, None)
    else:
        signal.raise_signal(number)


def _call_all(calls: Sequence[Callable[[], Any]]) -> None:
    """Call each, also where one before it raises."""
    if calls:
        try:
            calls[0]()
        finally:
            _call_all(calls[1:])
