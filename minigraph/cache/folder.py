"""A folder of files that nobody else can have written: native code is loaded from there."""

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
    """The folder `name` below `root`, both of which are made when something is written.

    Nothing is read from it or written to it while somebody else could change it.  The first failure
    is told in a warning; no failure is an error.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.path = root / name
        self._told = False

    def read(self, name: str, at_most: int) -> bytes | None:
        """Return what a file holds; None if it is missing, too large, no file, or not only ours."""
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
        """Write a file, which readers see whole or not at all; return whether it was written."""
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
        """Return the names of all files, with size and time of last use."""
        found = {}
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has just removed it
                    if entry.is_file(follow_symlinks=False):
                        found[entry.name] = entry.stat(follow_symlinks=False)
        return found

    def make(self) -> None:
        """Make the folder, and those above it, for their owner alone; OSError if that fails."""
        for folder in (*reversed(self.path.parents), self.path):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, exclusive: bool, patience: float) -> Iterator[None]:
        """Hold the folder against all that lock it, or only against those that do so exclusively.

        Raises TimeoutError after `patience` seconds, FileNotFoundError if there is no folder.
        """
        handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _lock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, patience)
            yield
        finally:
            # A child forked in between has the handle too, and would keep what is only closed.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def safe(self) -> bool:
        """Return whether nobody else can change what is in the folder; tell it if somebody can."""
        why = self.unsafe()
        if why:
            self.tell(why)
        return not why

    def unsafe(self) -> str:
        """Return why the folder is not used, or an empty string."""
        for folder in (self.root, self.path):
            why = _unsafe(folder)
            if why:
                return f"{folder} {why}"
        return ""

    def tell(self, why: str) -> None:
        """Warn, the first time, that nothing can be kept here."""
        if not self._told:
            self._told = True
            warn_once(
                f"{self.path} cannot keep results ({why}), so each run makes them anew; "
                "set MINIGRAPH_CACHE_DIR to a folder of your own"
            )


def _opener(path: str, flags: int) -> int:
    """Open a file, but neither follow a link nor wait for the writer of a pipe."""
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
    """Return who else, besides us and root, may change something, or an empty string."""
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return ""


def _unsafe(folder: Path) -> str:
    """Return why code from a folder is not to be run, or an empty string; a new one is safe."""
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
