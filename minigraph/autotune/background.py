"""Work in another thread, which a program that ends does not wait for.

At exit the interpreter would wait for an ordinary thread until its work is done, and a compiler
that a daemon thread has started would outlive the program.  So these are daemon threads, and the
end of the program interrupts them as Ctrl-C does the main thread: what they have begun is undone.
"""

from __future__ import annotations

import atexit
import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

PATIENCE = 2.0  # seconds: native code, which nothing interrupts, is left behind after that

T = TypeVar("T")
_threads: set[threading.Thread] = set()


def begun(work: Callable[[], T], name: str) -> Future[T]:
    """Return what `work` returns or raises, in a thread of its own, once it does.

    name  of the thread
    """
    made: Future[T] = Future()
    thread = threading.Thread(target=_run, args=(work, made), name=name, daemon=True)
    _threads.add(thread)
    thread.start()
    return made


def _run(work: Callable[[], T], made: Future[T]) -> None:
    try:
        made.set_result(work())
    except BaseException as error:  # the caller's to deal with
        made.set_exception(error)
    finally:
        _threads.discard(threading.current_thread())


@atexit.register
def _end() -> None:
    """Interrupt what still runs, and wait until it is undone."""
    until = time.monotonic() + PATIENCE
    running = [thread for thread in [*_threads] if thread.is_alive()]
    for thread in running:
        identity = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
    for thread in running:
        thread.join(max(until - time.monotonic(), 0.0))
