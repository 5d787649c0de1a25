"""Regular files: read without waiting and within their size, and replaced whole."""

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
from minigraph.platform.signals import held

PathLike = str | os.PathLike[str]

PATIENCE = 30.0  # seconds for which a writer waits for another one
MOST_LINKS = 40  # on the way to a file, on Linux
LEFT_BEHIND = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW  # flags to open a writer's leftover


def open_to_read(path: PathLike) -> tuple[BinaryIO, int]:
    """Open a file for reading; return it and its size.  OSError for a pipe, a device, a folder.

    It is the open file that is looked at, so nothing can take its place in between.
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
    """Write a text in UTF-8: a file appears whole or not at all, a pipe or a device just gets it.

    Raises GraphError if it cannot be written.
    """
    try:
        data, place = text.encode(), Path(path)
        if place.exists() and not (place.is_file() or place.is_dir()):
            place.write_bytes(data)
        else:
            replace(path, data)
    except (OSError, ValueError) as error:
        raise GraphError(f"{path} cannot be written: {reason(error)}") from error


def update(path: PathLike, contents: Callable[[], bytes], mode: int | None = None) -> None:
    """Replace a file by `contents()` atomically, so readers see the old or the new file.

    A link stays a link: its target is replaced.  The data are first written to `.<name>.tmp` in the
    same folder, which is locked before `contents` is called.  Another writer of the file waits for
    the lock, and removes the leftover of a killed writer.  Signal handlers wait until the file is
    written, and may then write it, too.

    Raises OSError, also for a pipe, a device or another user's link, and if the other writer does
    not end, or ValueError.

    mode  permissions of the file; by default the old file's, or those of the umask
    """
    target, earlier = _target(path)
    mode = earlier if mode is None else mode
    temporary = target.parent / os.fsdecode(b".%.250b.tmp" % os.fsencode(target.name))
    with held(), _claimed(temporary) as file:
        try:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(contents())
            file.flush()
            os.fsync(file.fileno())
            if not _is_at(file, temporary):  # where files cannot be locked
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
    place = Path(path)
    for _ in range(MOST_LINKS):
        try:
            status = place.lstat()
        except FileNotFoundError:
            return place, None
        if stat.S_ISREG(status.st_mode):
            return place, status.st_mode & 0o777
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISLNK(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        if not ours(status):
            raise PermissionError(errno.EPERM, f"{place} is a link of another user")
        place = place.parent / os.readlink(place)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def ours(status: os.stat_result) -> bool:
    """Return whether a file belongs to root or to this user."""
    return status.st_uid in (0, os.geteuid())


def _claimed(path: Path) -> BinaryIO:
    """Return a new, empty, locked temporary file, in place of a killed writer's leftover."""
    while True:
        file: BinaryIO
        try:
            file = open(path, "xb")  # noqa: SIM115
        except FileExistsError:
            try:
                file = os.fdopen(os.open(path, LEFT_BEHIND), "rb")
            except FileNotFoundError:
                continue
        try:
            _lock(file)
            if _is_at(file, path):  # else another writer took it for a dead writer's
                if file.writable():
                    return file
                path.unlink()
        except BaseException:
            file.close()
            raise
        file.close()


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
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        return False
