"""What a forked child inherits: locks that are free, and files that only its parent has locked.

A child has one thread, the one that forked.  A lock that another thread held at that moment would
stay locked in it for ever.
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
    """Return a lock that is free in a forked child, whoever held it."""
    new = threading.Lock()
    _locks.add(new)
    return new


def reentrant_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked child unless the thread held it that forked.

    What it protects may be in use for long: the child finds it as the other thread left it.
    """
    new = threading.RLock()
    _locks.add(new)
    return new


def awaited_lock() -> threading.RLock:
    """Return a lock that forks wait for: what it protects is never in use in a child.

    It is held for short times only, and by nobody who waits for another such lock.
    """
    new = threading.RLock()
    os.register_at_fork(before=new.acquire, after_in_parent=new.release, after_in_child=new.release)
    return new


@contextlib.contextmanager
def kept_from_children(handle: int) -> Iterator[None]:
    """Close a handle in children that are forked inside: it would keep a file locked for them."""
    _handles.add(handle)
    try:
        yield
    finally:
        _handles.discard(handle)


def _in_child() -> None:
    for inherited in _locks:
        if inherited.acquire(blocking=False):  # free, or this thread's
            inherited.release()
        else:
            inherited._at_fork_reinit()  # type: ignore[union-attr]
    for handle in _handles:
        with contextlib.suppress(OSError):
            os.close(handle)
    _handles.clear()
    if sys.version_info < (3, 12):  # from then on they have none
        for cached in _cached_properties():
            cached.lock = threading.RLock()  # type: ignore[attr-defined]


def _cached_properties() -> Iterator[functools.cached_property[Any]]:
    """Yield those of the package: each has a lock for all its instances while it computes."""
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] == "minigraph"]
    for module in modules:
        for each in vars(module).values():
            if isinstance(each, type) and each.__module__ == module.__name__:
                attributes = vars(each).values()
                yield from (x for x in attributes if isinstance(x, functools.cached_property))


os.register_at_fork(after_in_child=_in_child)
