"""Locks that are free in a forked child, and locked files that are closed in a child.

A child has only the thread that forked, so a lock that another thread held would be locked in the
child forever.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_locks: weakref.WeakSet[threading.Lock | threading.RLock] = weakref.WeakSet()
_handles: set[int] = set()


def lock() -> threading.Lock:
    """Return a lock that is free in a forked child, even if another thread held it."""
    new = threading.Lock()
    _locks.add(new)
    return new


def reentrant_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child unless the forking thread held it.

    The lock may be held for long: a child gets the protected data in the state that the other
    thread left.
    """
    new = threading.RLock()
    _locks.add(new)
    return new


def awaited_lock() -> threading.RLock:
    """Return a lock for which forks wait, so that a child never gets data that are being changed.

    Hold it only briefly, and never while waiting for another lock of this kind.
    """
    new = threading.RLock()
    os.register_at_fork(before=new.acquire, after_in_parent=new.release, after_in_child=new.release)
    return new


@contextlib.contextmanager
def closed_in_children(handle: int) -> Iterator[None]:
    """Close a handle in children forked in the block, which would keep the file locked."""
    _handles.add(handle)
    try:
        yield
    finally:
        _handles.discard(handle)


def _in_child() -> None:
    for lock in _locks:
        if lock.acquire(blocking=False):  # free, or this thread's
            lock.release()
        else:
            lock._at_fork_reinit()  # type: ignore[union-attr]
    for handle in _handles:
        with contextlib.suppress(OSError):
            os.close(handle)
    _handles.clear()
    if sys.version_info < (3, 12):  # later versions have no lock
        for property_ in _cached_properties():
            property_.lock = threading.RLock()  # type: ignore[attr-defined]


def _cached_properties() -> Iterator[functools.cached_property[Any]]:
    """Yield the cached properties of the package: each has one lock for all instances."""
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "minigraph"]
    for module in modules:
        for cls in vars(module).values():
            if isinstance(cls, type) and cls.__module__ == module.__name__:
                attributes = vars(cls).values()
                yield from (x for x in attributes if isinstance(x, functools.cached_property))


os.register_at_fork(after_in_child=_in_child)
