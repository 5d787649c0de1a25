"""Deferring signals during uninterruptible work, and the stack of their handlers."""

from __future__ import annotations

import ctypes
import functools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Signals whose handlers may raise: Ctrl-C, termination by a scheduler or a terminal, alarms.
RAISING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGALRM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
STACK_BYTES = 1 << 16  # bytes for a handler; the saved registers take up to 12 KiB
DISABLED = 2  # SS_DISABLE


class _StackDescription(ctypes.Structure):
    _fields_ = (
        ("memory", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("size", ctypes.c_size_t),
    )


# Signals of faults in the thread itself, whose handlers must run at once.
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
        stack = _StackDescription(ctypes.addressof(self._memory), 0, STACK_BYTES)
        disabled = _StackDescription(None, DISABLED, 0)
        libc.sigaltstack(ctypes.byref(stack), None)
        # At the end of the program this module's names may be gone before this object is.
        self._disable = functools.partial(libc.sigaltstack, ctypes.byref(disabled), None)

    def __del__(self) -> None:
        self._disable()


_thread_state = threading.local()


def set_signal_stack() -> None:
    """Let signal handlers run on an alternate stack in the current thread, until it ends.

    By default the system saves registers below the stack pointer.  oneDNN's product for AVX2
    temporarily sets the stack pointer to a buffer on the heap, so a signal overwrote the memory
    before the buffer.  Python's handlers use an alternate stack if there is one (SA_ONSTACK).
    """
    libc, stack = ctypes.CDLL(None), _StackDescription()
    libc.sigaltstack(None, ctypes.byref(stack))
    if stack.flags & DISABLED:  # otherwise another module, such as faulthandler, has set one up
        _thread_state.stack = _SignalStack(libc)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals in the threads that the current thread starts in the block.

    These threads have no alternate stack, and they inherit the mask of blocked signals.  Otherwise
    the system could deliver any signal to them, such as a profiler's SIGPROF, which goes to the
    thread whose processor time has expired.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - OF_FAULTS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer signal handlers, such as that of Ctrl-C, until the end of the block.

    Only the main thread needs that, as Python runs no handlers in other threads.
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
    """Handle a deferred signal by its current handler, which an earlier handler may have set."""
    handler = signal.getsignal(number)
    if callable(handler):
        handler(number, None)
    else:
        signal.raise_signal(number)


def _call_all(calls: Sequence[Callable[[], Any]]) -> None:
    """Call each function, even if an earlier one raises."""
    if calls:
        try:
            calls[0]()
        finally:
            _call_all(calls[1:])
