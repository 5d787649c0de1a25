"""Regular files: reading up to their size without blocking, and atomic replacement."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from minigraph.errors import GraphError, reason
from minigraph.platform.signals import signals_deferred

PathLike = str | os.PathLike[str]

LOCK_TIMEOUT = 30.0  # seconds for which a writer waits for another writer
MAX_LINKS = 40  # on the way to a file, on Linux
LEFTOVER_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW  # flags to open a writer's leftover


def open_to_read(path: PathLike) -> tuple[BinaryIO, int]:
    """Open a file for reading; return it and its size.  OSError for a pipe, a device, a folder.

    The open file itself is checked, so no other process can replace it before the check.
    """
    # O_NONBLOCK: do not wait for the writer of a pipe.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is no regular file")
    return file, status.st_size


def read(path: PathLike, limit: int | None = None) -> bytes:
    """Return the bytes that a regular file had when it was opened.

    Raises OSError, also for more than `limit` bytes or missing memory, and ValueError for an
    invalid path.
    """
    file, size = open_to_read(path)
    with file:
        if limit is not None and size > limit:
            raise OSError(errno.EFBIG, f"is larger than {limit} bytes")
        try:
            return file.read(size)
        except (MemoryError, OverflowError):
            raise OSError(errno.ENOMEM, f"{size} bytes do not fit into the memory") from None


def replace(path: PathLike, data: bytes) -> None:
    update(path, lambda: data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8: atomically to a file, directly to a pipe or a device.

    Raises GraphError if it cannot be written.
    """
    try:
        data, target = text.encode(), Path(path)
        if target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(data)
        else:
            replace(path, data)
    except (OSError, ValueError) as error:
        raise GraphError(f"{path} cannot be written: {reason(error)}") from error


def update(path: PathLike, contents: Callable[[], bytes], mode: int | None = None) -> None:
    """Replace a file by `contents()` atomically, so readers see the old or the new file.

    If the path is a link, its target is replaced.  The data are first written to `.<name>.tmp` in
    the same folder, which is locked before `contents` is called.  Another writer of the file waits
    for the lock, and removes the leftover of a killed writer.  Signal handlers wait until the file
    is written, and may then write it, too.

    Raises ValueError for an invalid path, and OSError, also for a pipe, a device or another user's
    link, and if another writer does not end.

    mode  permissions of the file; by default the old file's, or those of the umask
    """
    target, old_mode = _target(path)
    mode = old_mode if mode is None else mode
    temporary = target.parent / os.fsdecode(b".%.250b.tmp" % os.fsencode(target.name))
    with signals_deferred(), _locked_temporary(temporary) as file:
        try:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(contents())
            file.flush()
            os.fsync(file.fileno())
            if not _is_at(file, temporary):  # on a disk without locks
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            os.replace(temporary, target)
        finally:
            if _is_at(file, temporary):
                temporary.unlink()


def _target(path: PathLike) -> tuple[Path, int | None]:
    """Return the target of a path, which will be replaced, and its permissions.

    Raises OSError if the target is no regular file, and PermissionError for another user's link,
    which could name any file of this user.
    """
    target = Path(path)
    for _ in range(MAX_LINKS):
        try:
            status = target.lstat()
        except FileNotFoundError:
            return target, None
        if stat.S_ISREG(status.st_mode):
            return target, status.st_mode & 0o777
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISLNK(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        if not is_trusted_owner(status):
            raise PermissionError(errno.EPERM, f"{target} is a link of another user")
        target = target.parent / os.readlink(target)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def is_trusted_owner(status: os.stat_result) -> bool:
    """Return whether a file belongs to root or to this user."""
    return status.st_uid in (0, os.geteuid())


def _locked_temporary(path: Path) -> BinaryIO:
    """Return a new, empty, locked temporary file, in place of a killed writer's leftover."""
    while True:
        file: BinaryIO
        try:
            file = open(path, "xb")  # noqa: SIM115
        except FileExistsError:
            try:
                file = os.fdopen(os.open(path, LEFTOVER_FLAGS), "rb")
            except FileNotFoundError:
                continue
        try:
            _lock(file)
            if _is_at(file, path):  # otherwise another writer removed it as a leftover
                if file.writable():
                    return file
                path.unlink()
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: BinaryIO) -> None:
    try:
        lock_file(file.fileno(), fcntl.LOCK_EX, LOCK_TIMEOUT)
    except TimeoutError:
        raise
    except OSError:
        # On disks without locks, one of two processes that write a file at once gets an error.
        pass


def lock_file(handle: int, operation: int, timeout: float) -> None:
    """Lock an open file or folder as `fcntl.flock` does; TimeoutError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            return fcntl.flock(handle, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds it") from None
            time.sleep(0.01)


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False
