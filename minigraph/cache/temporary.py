"""Temporary files and folders, and the removal of those that killed processes left.

Whoever makes one locks it.  Where it was locked by nobody and was not written to for some minutes,
its maker is gone, and the next one to make something there removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from minigraph.cache import trust

AGE = 600.0  # seconds; makers need a moment to lock, and some disks cannot lock
LOOKED_AT = 10_000  # names in a folder, so that little time is spent in a large one
_cleared: set[Path] = set()  # where this process has looked for folders that others left


def write(folder: int, name: str, prefix: str, suffix: str, data: bytes) -> None:
    """Write a file, which only we can read, to the side and rename it to `name`; OSError if not.

    folder          a descriptor
    prefix, suffix  of its name until it is complete, as `clear` takes them
    """
    temporary = f"{prefix}{secrets.token_hex(8)}{suffix}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    handle = os.open(temporary, flags, 0o600, dir_fd=folder)
    try:
        with open(handle, "wb") as file:
            _lock(file.fileno())
            file.write(data)
            file.flush()
            os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


@contextlib.contextmanager
def folder(root: Path, prefix: str) -> Iterator[Path]:
    """Give a new folder below `root`, for its owner only, and remove it with all it holds.

    Raises OSError if there can be none, or if others could put theirs in its place.
    """
    above = trust.open_folder(root, shared=True)
    try:
        if root not in _cleared:
            _cleared.add(root)
            clear(above, prefix, "")
        made, maker = Path(tempfile.mkdtemp(prefix=prefix, dir=root)), os.getpid()
    finally:
        os.close(above)
    handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(handle)
        yield made
    finally:
        os.close(handle)
        if os.getpid() == maker:  # not where a forked child ends
            shutil.rmtree(made, ignore_errors=True)


def clear(folder: int, prefix: str, suffix: str, age: float = AGE) -> None:
    """Remove the files and folders with such names that killed processes of this user left.

    folder  a descriptor
    age     seconds for which nothing was written to them
    """
    before = time.time() - age
    with (
        contextlib.suppress(OSError),
        trust.listed(folder) as handle,
        os.scandir(handle) as entries,
    ):
        for entry in itertools.islice(entries, LOOKED_AT):
            if entry.name.startswith(prefix) and entry.name.endswith(suffix):
                _remove(handle, entry.name, before)


def _remove(folder: int, name: str, before: float) -> None:
    """Remove a file or a folder of ours that nobody has locked and that is older than a time."""
    with contextlib.suppress(OSError):
        left = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            status = os.fstat(left)
            if status.st_uid != os.geteuid() or status.st_mtime > before:
                return
            fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if stat.S_ISDIR(status.st_mode):
                shutil.rmtree(name, dir_fd=folder)
            elif stat.S_ISREG(status.st_mode):
                os.unlink(name, dir_fd=folder)
        finally:
            os.close(left)


def _lock(handle: int) -> None:
    with contextlib.suppress(OSError):  # a disk that cannot lock
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
