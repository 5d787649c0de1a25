"""Regular files: read without waiting and within their size, and replaced whole."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]

LONGEST = 255  # bytes of a name, on Linux
LINK = os.O_PATH | os.O_NOFOLLOW  # opens a link itself
PATIENCE = 30.0  # seconds for which a writer waits for another one
MOST_LINKS = 40  # on the way to a file, on Linux


def without_waiting(path: str, flags: int) -> int:
    """Open a file, without waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def open_to_read(
    path: PathLike, opener: Callable[[str, int], int] = without_waiting
) -> tuple[BinaryIO, int]:
    """Open a file for reading; return it and its size.  OSError for a pipe, a device, a folder.

    It is the open file that is looked at, so nothing can take its place in between.

    opener  opens it as `open` asks, and waits for nothing
    """
    file = open(path, "rb", opener=opener)  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no regular file")
    return file, status.st_size


def read(path: PathLike) -> bytes:
    """Return what a regular file holds, as far as it reached when it was opened.

    Raises OSError, also if the memory does not suffice, and ValueError for a path that is none.
    """
    file, size = open_to_read(path)
    with file:
        try:
            return file.read(size)
        except (MemoryError, OverflowError):
            raise OSError(errno.ENOMEM, f"{size} bytes do not fit into the memory") from None


def replace(path: PathLike, data: bytes) -> None:
    """Write `data` to a file, which readers see as it was or whole, also after a crash.

    A link stays one: the file that it leads to is replaced; who may read and write it stays, too.
    Until the end the data are in a file beside it, `.<name>.tmp`, which its writer has locked:
    another writer of the same file waits, and removes what a writer that was killed has left.  A
    handler of a signal that writes the file whose write it interrupts does so at once: its data are
    the newer ones, and stay.
    Raises OSError, also for a pipe, a device or another user's link, and where the other writer
    does not end, or ValueError.
    """
    target = followed(path)
    mode = _mode(target)
    temporary = target.parent / os.fsdecode(b".%.250b.tmp" % os.fsencode(target.name))
    interrupted = _here.files.get(temporary)
    if interrupted and not interrupted.closed and _is_at(interrupted, temporary):
        _here.newer[temporary] = False
        temporary.unlink()
    try:
        while not _written(temporary, target, mode, data) and not _here.newer.get(temporary):
            pass
        if interrupted:
            _here.newer[temporary] = True
    finally:
        if interrupted:
            _here.files[temporary] = interrupted
        else:
            _here.files.pop(temporary, None)
            _here.newer.pop(temporary, None)


class _Here(threading.local):
    """What the current thread writes.

    files  by path, as far as they are not yet in their place
    newer  of those that a handler of a signal has removed to write newer data, whether it has
    """

    def __init__(self) -> None:
        self.files: dict[Path, BinaryIO] = {}
        self.newer: dict[Path, bool] = {}


_here = _Here()


def _written(temporary: Path, target: Path, mode: int | None, data: bytes) -> bool:
    """Replace a file; return whether that was done, and no handler of a signal came first."""
    with _claimed(temporary) as file:
        try:
            if _here.newer.get(temporary):
                return False
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if not _is_at(file, temporary):
                return False
            os.replace(temporary, target)
        except FileNotFoundError:
            if temporary not in _here.newer:
                raise
            return False
        finally:
            if _is_at(file, temporary):
                temporary.unlink()
    return True


def _mode(target: Path) -> int | None:
    """Return who may read and write a file, None if there is none; OSError if it is not regular."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is no regular file")
    return mode & 0o777


def followed(path: PathLike) -> Path:
    """Return where a path leads, to replace the file there; PermissionError for another's link.

    Another user's link could choose any file of this user for that.  It is the open link that is
    looked at, so nothing can take its place in between.
    """
    place = Path(path)
    for _ in range(MOST_LINKS):
        target, own = link(place)
        if not target:
            return place
        if not own:
            raise PermissionError(errno.EPERM, f"{place} is a link of another user")
        place = place.parent / target
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def link(path: PathLike, folder: int | None = None) -> tuple[str, bool]:
    """Return where a link leads, and whether it is ours; "" and True where there is none.

    folder  a descriptor, in which a relative path begins
    """
    try:
        handle = os.open(path, LINK, dir_fd=folder)
    except FileNotFoundError:
        return "", True
    try:
        status = os.fstat(handle)
        if not stat.S_ISLNK(status.st_mode):
            return "", True
        return os.readlink("", dir_fd=handle), ours(status)
    finally:
        os.close(handle)


def ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to root or to this user."""
    return status.st_uid in (0, os.geteuid())


def _claimed(path: Path) -> BinaryIO:
    """Return a new and empty file, locked by us, in the place of what a dead writer has left."""
    while True:
        try:
            file = open(path, "xb")  # noqa: SIM115
        except FileExistsError:
            _remove_once_unlocked(path)
            continue
        try:
            _here.files[path] = file
            _lock(file)
            if _is_at(file, path):  # else another writer took it for a dead writer's
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _remove_once_unlocked(path: Path) -> None:
    try:
        left = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    with open(left, "rb") as file:
        _lock(file)
        if _is_at(file, path):
            path.unlink()


def _lock(file: BinaryIO) -> None:
    try:
        wait_for(file.fileno(), fcntl.LOCK_EX, PATIENCE)
    except TimeoutError:
        raise
    except OSError:
        # Where files cannot be locked, one of two that write the same file at once gets an error.
        pass


def wait_for(handle: int, how: int, patience: float) -> None:
    """Lock an open file or folder as `fcntl.flock` does; TimeoutError after `patience` seconds."""
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds it") from None
            time.sleep(0.01)


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Return whether a path leads to the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False
