"""A folder that only its owner can write: machine code is loaded from it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from minigraph.errors import warn_once


class Folder:
    """The folder `name` below `root`; the first write makes both.

    It is neither read nor written while another user could change it.  The first failure gives a
    warning; no failure is an error.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.path = root / name
        self._told = False

    def read(self, name: str, at_most: int) -> bytes | None:
        """Return a file's bytes; None if it is missing, too large, no file, or not ours alone."""
        if not self.safe():
            return None
        try:
            with open(self.path / name, "rb", opener=_opener) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or others(status) or status.st_size > at_most:
                    return None
                return file.read()
        except (OSError, ValueError):  # ValueError: a name that no file can have
            return None

    def write(self, name: str, data: bytes) -> bool:
        """Write a file, of which readers see all or nothing; return whether that was possible."""
        if not self.safe():
            return False
        temporary = ""
        try:
            self.make()
            handle, temporary = tempfile.mkstemp(dir=self.path, suffix=".tmp")
            with open(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self.path / name)
        except OSError as error:
            self.tell(error.strerror or str(error))
            self.remove(temporary)
            return False
        return True

    def touch(self, name: str) -> None:
        """Mark a file as used now."""
        with contextlib.suppress(OSError):
            os.utime(self.path / name)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(self.path / name)

    def files(self) -> dict[str, os.stat_result]:
        """Return the status of each file, with its size and time of last use, by name."""
        statuses = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has just removed it
                    if entry.is_file(follow_symlinks=False):
                        statuses[entry.name] = entry.stat(follow_symlinks=False)
        return statuses

    def make(self) -> None:
        """Make the folder and its parents, for their owner only; OSError if that fails."""
        for folder in (*reversed(self.path.parents), self.path):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, exclusive: bool, patience: float) -> Iterator[None]:
        """Hold an exclusive or a shared lock on the folder.

        Raises TimeoutError after `patience` seconds, FileNotFoundError if there is no folder.
        """
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _lock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, patience)
            yield
        finally:
            # A child that was forked meanwhile has the handle too: closing ours does not unlock.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def safe(self) -> bool:
        """Return whether no other user can change the folder; warn if one can."""
        why = self.unsafe()
        if why:
            self.tell(why)
        return not why

    def unsafe(self) -> str:
        """Return why the folder is not used, or an empty string."""
        reasons = ((folder, _unsafe(folder)) for folder in (self.root, self.path))
        return next((f"{folder} {why}" for folder, why in reasons if why), "")

    def tell(self, why: str) -> None:
        """Warn, the first time, that nothing can be kept here."""
        if not self._told:
            self._told = True
            warn_once(
                f"{self.path} cannot keep results ({why}), so each run makes them again; "
                "set MINIGRAPH_CACHE_DIR to a folder of your own"
            )


def _opener(path: str, flags: int) -> int:
    """Open a file without following a link or waiting for the writer of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _lock(handle: int, how: int, patience: float) -> None:
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(handle, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError(errno.ETIMEDOUT, "another process holds it") from None
            time.sleep(0.01)


def others(status: os.stat_result) -> str:
    """Return why users other than us and root may change a file, or an empty string."""
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return ""


def _unsafe(folder: Path) -> str:
    """Return why code from a folder must not run, or an empty string; a missing one is safe."""
    try:
        status, parent = folder.stat(), folder.parent.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISDIR(status.st_mode):
        return "is no folder"
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        return "can be replaced by other users, who may write to its parent"
    return others(status)
