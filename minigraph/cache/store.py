"""The cache folder: a database of measurements and kernels that many processes use at once.

A damaged row is a miss, until it is written again.  A file that is damaged, or that is no database
of this schema, is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from minigraph.cache import database
from minigraph.cache.database import (
    MEASUREMENTS,
    WHERE_KEY,
    DamagedDatabase,
    Entry,
    Reader,
    in_one_line,
    key_of,
    primary_code,
)
from minigraph.errors import reason, warn_once
from minigraph.platform import forks, trust
from minigraph.platform.records import one_line

SIZE_LIMIT = 256 << 20  # bytes of entries
LOCK_TIMEOUT = 5.0  # seconds to wait for other processes
HOUR = 3600.0  # seconds
FILE_NAME = "cache.db"

# Delete the least recently used rows; first those used in the future, as a clock was set back.
DELETE_OLDEST = """DELETE FROM entries WHERE (kind, subject, environment) IN (
    SELECT kind, subject, environment FROM entries WHERE used <> :now
    ORDER BY used > :now DESC, used, kind, subject, environment LIMIT :rows)"""
TOUCH = f"UPDATE entries SET used = ?{WHERE_KEY}"

# SQLite's codes if other processes use the file; PROTOCOL means that this process lost the race for
# a lock too often.  Only `database.DAMAGE_CODES` mean that the file is damaged.  After other codes
# it is kept: the system refused (PERM, NOMEM, READONLY, IOERR, FULL, CANTOPEN, NOLFS), something
# stopped the statement (ABORT, INTERRUPT, SCHEMA, AUTH), an entry is larger than MAX_VALUE
# (TOOBIG), or the code is unspecific (ERROR and others).
BUSY_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

# A child that is forked while SQLite holds its locks would wait for them forever.
_fork_lock = forks.awaited_lock()

T = TypeVar("T")
Merge = Callable[[Entry, Entry], Entry]
Transaction = Callable[[sqlite3.Connection], T]


class Store:
    """The entries in a folder; the least recently used are removed above a limit of bytes.

    The folder is neither read nor written while another user could change it.  The first failure
    gives a warning; failures raise no error.

    Each operation opens the database again, so a forked child shares nothing with its parent, and
    no file is mapped when another process replaces it.

    rejected  number of damaged rows that `find` has met so far
    """

    def __init__(self, folder: Path, limit: int = SIZE_LIMIT) -> None:
        self.root = folder.absolute()
        self.path = self.root / FILE_NAME
        self.limit = limit
        self.rejected = 0
        self._damaged: set[str] = set()
        self._lock_timeout = LOCK_TIMEOUT  # 0 after a timeout, until something can be written
        self._warned = False

    @contextlib.contextmanager
    def measuring_lock(self, timeout: float) -> Iterator[bool]:
        """Hold the folder's lock for measuring; yield whether it was acquired.

        timeout  seconds to wait for the lock, which a process loses when it ends
        """
        with contextlib.ExitStack() as stack:
            acquired = False
            with contextlib.suppress(OSError):  # a timeout, or the disk does not support locks
                folder = self.root / "measuring"
                stack.enter_context(trust.locked_folder(folder, True, timeout, create=True))
                acquired = True
            yield acquired

    def find(self, keys: Sequence[Entry]) -> list[Entry | None]:
        """Return the stored entry with the key of each entry, or None.

        Mark found entries as used now, once an hour, if no other process is writing.
        """

        def read(db: sqlite3.Connection) -> list[tuple[bool, Entry | None]]:
            reader, now = Reader(db), time.time()
            rows = [reader.find(entry) for entry in keys]
            stale = [e for _, e in rows if e and abs(now - reader.use_times[e.key]) > HOUR]
            if stale and self._writable:
                with contextlib.suppress(sqlite3.Error):  # `keep` reports an error that persists
                    db.execute("PRAGMA busy_timeout = 0")
                    db.execute("BEGIN IMMEDIATE")
                    db.executemany(TOUCH, [(now, *key_of(entry)) for entry in stale])
                    db.execute("COMMIT")
            return rows

        rows: list[tuple[bool, Entry | None]] = [(False, None)] * len(keys)
        rows = self._run(read, rows) if keys else rows
        pairs = zip(keys, rows, strict=True)
        damaged = {key.key for key, (exists, entry) in pairs if exists and not entry}
        self.rejected += len(damaged - self._damaged)
        self._damaged |= damaged
        return [entry for _, entry in rows]

    def keep(self, entries: Sequence[Entry], merge: Merge) -> bool:
        """Write all entries or none; return whether they were written.

        `merge(old, new)` replaces an entry with the same key.
        """

        def write(db: sqlite3.Connection) -> bool:
            now = time.time()
            db.execute("BEGIN IMMEDIATE")
            reader = Reader(db)
            old = [reader.find(new)[1] for new in entries]
            merged = (merge(o, n) if o else n for o, n in zip(old, entries, strict=True))
            database.insert(db, merged, now)
            self._evict(db, now)
            db.execute("COMMIT")
            return True

        is_stored = not entries or self._run(write, False, create=True)
        self._lock_timeout = LOCK_TIMEOUT if is_stored else self._lock_timeout
        return is_stored

    def entries(self, *kinds: str) -> list[Entry]:
        """Return all good entries of these kinds, by default the measurements."""
        return [entry for kind in kinds or MEASUREMENTS for entry in self._select("kind = ?", kind)]

    def nearest(self, kind: str, subject: str) -> list[Entry]:
        """Return the entries of a subject in all environments, the last used first."""
        return self._select("kind = ? AND subject = ?", kind, subject, order="used DESC")

    def verify(self) -> list[tuple[str, str]]:
        """Return (name, reason) for each damaged row, and for the file if it is damaged."""

        def check(db: sqlite3.Connection) -> list[tuple[str, str]]:
            lines = (one_line(line) for (line,) in db.execute("PRAGMA integrity_check"))
            faults = [(FILE_NAME, line) for line in lines if line != "ok"]
            damaged = (subject for subject, good in Reader(db).select("") if not good)
            return faults + [(subject, database.WRONG_CHECKSUM) for subject in damaged]

        try:
            with trust.locked_folder(self.root, False, self._lock_timeout):
                return self._attempt(check, self._lock_timeout)
        except FileNotFoundError:
            return []
        except (OSError, sqlite3.Error, DamagedDatabase) as error:
            return [(FILE_NAME, in_one_line(error))]

    def clear(self, *kinds: str) -> None:
        """Remove the entries of these kinds, by default all."""

        def remove(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            for kind in kinds:
                db.execute("DELETE FROM entries WHERE kind = ?", (kind,))
            if not kinds:
                db.execute("DELETE FROM entries")
            db.execute(database.DELETE_UNUSED_BLOBS)
            db.execute("COMMIT")
            db.execute("VACUUM")

        self._run(remove, None)

    def unsafe(self) -> str:
        """Return why the folder is not used; "" if it is used.  A missing folder is safe."""
        try:
            trust.check_folder(self.root)
        except FileNotFoundError:
            pass
        except OSError as error:
            return reason(error)
        return ""

    def _select(self, where: str, *values: str, order: str = "subject, environment") -> list[Entry]:
        def read(db: sqlite3.Connection) -> list[Entry]:
            rows = Reader(db).select(f" WHERE {where} ORDER BY {order}", values)
            return [entry for _, entry in rows if entry]

        return self._run(read, [])

    def _evict(self, db: sqlite3.Connection, now: float) -> None:
        """Remove the least recently used entries above the limit, but none that was used `now`."""
        limit = self.limit
        while _size(db) > limit:
            limit = self.limit * 3 // 4  # remove more, so that it is seldom necessary
            (rows,) = db.execute("SELECT count(*) FROM entries").fetchone()
            if not db.execute(DELETE_OLDEST, {"now": now, "rows": rows // 8 + 1}).rowcount:
                break
            db.execute(database.DELETE_UNUSED_BLOBS)

    @property
    def _writable(self) -> bool:
        return os.access(self.root, os.W_OK, effective_ids=True)

    def _run(self, transaction: Transaction[T], default: T, create: bool = False) -> T:
        """Return the result of `transaction`; `default` if the database is missing or unusable.

        A damaged database is removed.

        create  whether to create a missing database
        """
        timeout = self._lock_timeout
        try:
            try:
                with trust.locked_folder(self.root, False, timeout, create):
                    return self._attempt(transaction, timeout, create)
            except DamagedDatabase:
                pass
            # With an exclusive lock no other process has the files open that are removed here.
            with trust.locked_folder(self.root, True, timeout):
                try:
                    # Another process may have replaced the database.
                    return self._attempt(transaction, timeout, create)
                except DamagedDatabase as damage:
                    self._remove()
                    if not damage.foreign:
                        warn_once(f"{self.path} was damaged; a new database replaces it")
                return self._attempt(transaction, timeout, create)
        except (OSError, sqlite3.Error, DamagedDatabase) as error:  # damaged for the second time
            if isinstance(error, FileNotFoundError) and not create:
                return default
            busy = isinstance(error, TimeoutError) or primary_code(error) in BUSY_CODES
            # After a timeout, do not wait again for each of a hundred entries.
            self._lock_timeout = 0.0 if busy else self._lock_timeout
            message = in_one_line(error)
            if not self._warned:
                warn_once(
                    f"{self.root} cannot keep results ({message}), so each run makes them again; "
                    "set MINIGRAPH_CACHE_DIR to a folder of your own",
                    cause=f"{self.root} cannot keep results: {message}",
                )
            self._warned = True
            return default

    def _attempt(self, transaction: Transaction[T], timeout: float, create: bool = False) -> T:
        """Return the result of `transaction`; raise DamagedDatabase if the file is damaged."""
        try:
            with _fork_lock, contextlib.closing(self._open(timeout, create)) as db:
                return transaction(db)
        except UnicodeDecodeError as error:  # from an error message that quotes damaged text
            raise DamagedDatabase(str(error)) from None
        except sqlite3.Error as error:
            if primary_code(error) in database.DAMAGE_CODES:
                raise DamagedDatabase(str(error)) from None
            raise

    def _open(self, timeout: float, create: bool) -> sqlite3.Connection:
        """Return a connection; FileNotFoundError if the database is missing or empty.

        The folder is trusted, and no other user can replace it.
        """
        if not (create or os.path.lexists(self.path)):
            raise FileNotFoundError(self.path)
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                regular = stat.S_ISREG(status.st_mode)
                if why := trust.why_untrusted(path, status) if regular else "is no file":
                    raise DamagedDatabase(f"{path.name} {why}")
        # If the header has another version of the format, SQLite refuses each write as if the file
        # were read-only.
        with contextlib.suppress(OSError), open(self.path, "rb") as file:
            header = file.read(20)
            versions = {*header[database.FORMAT_VERSION_BYTES]}
            if header.startswith(database.MAGIC) and not versions <= {1, 2}:
                raise DamagedDatabase("its header needs another version of SQLite")
        mode = "rwc" if create else "rw" if self._writable else "ro&immutable=1"
        options: Any = {"uri": True, "isolation_level": None, "check_same_thread": False}
        db = sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", timeout=timeout, **options)
        try:
            self._prepare(db, create)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection, create: bool) -> None:
        database.set_limits(db)
        db.execute("PRAGMA synchronous = NORMAL")
        if database.has_tables(db):
            return
        if not create:
            raise FileNotFoundError(self.path)
        self.path.chmod(0o600)  # SQLite gives its other files the same mode
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        if not database.has_tables(db):  # no other process was faster
            database.create(db)
        db.execute("COMMIT")

    def _remove(self) -> None:
        for path in reversed(self._files()):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        suffixes = ("", "-wal", "-shm", "-journal")
        return [self.path.with_name(FILE_NAME + suffix) for suffix in suffixes]


def _size(db: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


open_store = functools.cache(Store)  # one store for each folder
