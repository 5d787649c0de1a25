"""Signals that wait, for work that must not be interrupted; where their handlers run."""

from __future__ import annotations

import ctypes
import functools
import signal
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
STACK_BYTES = 1 << 16  # bytes for a handler; the registers that it interrupts take up to 12 KiB
DISABLED = 2  # SS_DISABLE


class _StackDescription(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


# What a fault in the thread itself raises: its handler must run at once.
OF_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
}


class _SignalStack:
    """The alternate stack of the current thread, on which signal handlers run while this exists."""

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._memory = ctypes.create_string_buffer(STACK_BYTES)
        own = _StackDescription(ctypes.addressof(self._memory), 0, STACK_BYTES)
        none = _StackDescription(None, DISABLED, 0)
        libc.sigaltstack(ctypes.byref(own), None)
        # At the end of the program this module's names may be gone before this object is.
        self._leave = functools.partial(libc.sigaltstack, ctypes.byref(none), None)

    def __del__(self) -> None:
        self._leave()


_here = threading.local()


def set_signal_stack() -> None:
    """Let signal handlers run on an alternate stack in the current thread, until it ends.

    Without it the system saves registers at the stack pointer.  oneDNN's product for AVX2 sets that
    to a buffer on the heap for a while, and what lies before the buffer was overwritten.  Python's
    handlers run on an alternate stack where there is one (SA_ONSTACK).
    """
    libc, stack = ctypes.CDLL(None), _StackDescription()
    libc.sigaltstack(None, ctypes.byref(stack))
    if stack.flags & DISABLED:  # faulthandler, for one, has set up its own
        _here.stack = _SignalStack(libc)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals in the threads that the current thread starts in the block.

    Such threads inherit which signals are blocked, and have no alternate stack.  The system may
    send a signal to any thread that does not block it: SIGPROF, that of a timer of processor time,
    with which programs are profiled, goes to the thread whose time is counted.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - OF_FAULTS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
