"""Signals that wait, for work that must not be interrupted."""

from __future__ import annotations

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
