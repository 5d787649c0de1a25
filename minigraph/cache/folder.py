"""A folder that only its owner can write: machine code is loaded from it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from minigraph.cache import temporary, trust
from minigraph.errors import reason, warn_once
from minigraph.platform import forks
from minigraph.platform.regular_file import open_to_read, wait_for

UNFINISHED = "", ".tmp"  # how the names of unfinished files begin and end


class Folder:
    """The folder `name` below `root`; the first write makes both.

    It is neither read nor written while another user could change it: each operation opens it by
    `trust` and works on the descriptor.  The first failure gives a warning; no failure is an error.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.path = root / name
        self._told = False
        self._cleared = False

    def read(self, name: str, at_most: int) -> bytes | None:
        """Return a file's bytes; None if it is missing, too large, no file, or not ours alone."""
        with self._opened() as folder, contextlib.suppress(OSError, ValueError):
            # ValueError: a name that no file can have
            if folder is not None:

                def opener(name: str, flags: int) -> int:
                    return os.open(name, trust.FILE, dir_fd=folder)

                file, size = open_to_read(name, opener)
                with file:
                    if size <= at_most and not trust.others(file.fileno()):
                        return file.read()
        return None

    def write(self, name: str, data: bytes) -> bool:
        """Write a file, of which readers see all or nothing; return whether that was possible."""
        with self._opened(make=True) as folder:
            if folder is None:
                return False
            if not self._cleared:
                self._cleared = True
                temporary.clear(folder, *UNFINISHED)
            try:
                temporary.write(folder, name, *UNFINISHED, data)
            except OSError as error:
                self.tell(reason(error))
                return False
        return True

    def touch(self, name: str) -> None:
        """Mark a file as used now."""
        with self._opened() as folder, contextlib.suppress(OSError):
            if folder is not None:
                os.utime(name, dir_fd=folder, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with self._opened() as folder, contextlib.suppress(OSError):
            if folder is not None:
                os.unlink(name, dir_fd=folder)

    def files(self) -> dict[str, os.stat_result]:
        """Return the status of each file, with its size and time of last use, by name."""
        statuses = {}
        with self._opened() as folder, contextlib.suppress(OSError):
            if folder is not None:
                with trust.listed(folder) as handle, os.scandir(handle) as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):  # another process has just removed it
                            if entry.is_file(follow_symlinks=False):
                                statuses[entry.name] = entry.stat(follow_symlinks=False)
        return statuses

    @contextlib.contextmanager
    def locked(self, exclusive: bool, patience: float, make: bool = False) -> Iterator[int]:
        """Hold an exclusive or a shared lock on the folder; give its descriptor.

        make  make a missing folder
        Raises TimeoutError after `patience` seconds, FileNotFoundError if there is no folder, and
        another OSError if it is not trusted.
        """
        folder = trust.open_folder(self.path, make)
        try:
            with trust.listed(folder) as handle, lock(handle, exclusive, patience):
                yield handle
        finally:
            os.close(folder)

    def unsafe(self) -> str:
        """Return why the folder is not used, or an empty string; a missing one is safe."""
        try:
            os.close(trust.open_folder(self.path))
        except FileNotFoundError:
            pass
        except OSError as error:
            return reason(error)
        return ""

    def tell(self, why: str) -> None:
        """Warn, the first time, that nothing can be kept here."""
        if not self._told:
            self._told = True
            warn_once(
                f"{self.path} cannot keep results ({why}), so each run makes them again; "
                "set MINIGRAPH_CACHE_DIR to a folder of your own",
                cause=f"{self.path.parent} cannot keep results: {why}",
            )

    @contextlib.contextmanager
    def _opened(self, make: bool = False) -> Iterator[int | None]:
        """Give a descriptor of the folder; None if it is missing or not used, which is told."""
        folder = None
        try:
            folder = trust.open_folder(self.path, make)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.tell(reason(error))
        try:
            yield folder
        finally:
            if folder is not None:
                os.close(folder)


@contextlib.contextmanager
def lock(handle: int, exclusive: bool, patience: float) -> Iterator[None]:
    """Hold a lock on an open file or folder; TimeoutError after `patience` seconds."""
    how = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
    with forks.kept_from_children(handle):
        wait_for(handle, how, patience)
        try:
            yield
        finally:
            # A child that C has forked meanwhile has the handle too: closing ours does not unlock.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
