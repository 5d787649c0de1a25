"""Measurements on disk: entries in an SQLite database that many processes use at once.

A row holds an entry in clear text, its checksum, and the time of its last use.  A row with a wrong
checksum is a miss and is removed; a file that is no database of this schema is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from minigraph.cache.entry import Entry
from minigraph.cache.folder import Folder, others
from minigraph.errors import warn_once

SCHEMA = 1  # a change makes everything on disk unknown
LIMIT = 64 << 20  # bytes of entries
MAX_VALUE = 16 << 20  # bytes of a text or blob, so that a damaged length costs little memory
PATIENCE = 3.0  # seconds to wait for other processes
NAME = "measurements.db"

CREATE = """CREATE TABLE entries (
    kind TEXT NOT NULL, subject TEXT NOT NULL, environment TEXT NOT NULL, body TEXT NOT NULL,
    blob BLOB NOT NULL, checksum TEXT NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (kind, subject, environment)) WITHOUT ROWID"""
SELECT = "SELECT kind, subject, environment, body, blob, checksum FROM entries"
INSERT = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
KEY = " WHERE kind = ? AND subject = ? AND environment = ?"
# The least recently used rows.  Rows that were used in the future come first: a clock was set back.
OLDEST = """DELETE FROM entries WHERE (kind, subject, environment) IN (
    SELECT kind, subject, environment FROM entries WHERE used <> :now
    ORDER BY used > :now DESC, used, kind, subject, environment LIMIT :rows)"""

BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
# The operating system refused.  Every other error means that the file is damaged.
REFUSED = (
    *BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)

T = TypeVar("T")
Environment = tuple[tuple[str, str], ...]
Work = Callable[[sqlite3.Connection], T]


class Measurements:
    """The entries in a folder; the least recently used are removed when they take too many bytes.

    Each operation opens the database again, so a forked child shares nothing with its parent, and
    no file is mapped when another process replaces it.

    rejected  the number of damaged rows so far
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = Folder(folder.absolute(), "autotune")
        self.path = self.folder.path / NAME
        self.limit = limit
        self.rejected = 0
        self._touched: set[str] = set()  # keys of entries that this process has marked as used
        self._patience = PATIENCE

    def find(self, kind: str, subject: str, environment: Environment) -> Entry | None:
        """Return the entry of a subject in an environment, or None."""
        wanted = Entry(kind, subject, environment, "")
        row = self._run(lambda db: db.execute(SELECT + KEY, _key(wanted)).fetchone(), None)
        entry = row and _good(row, wanted)
        if row and not entry:
            self.rejected += 1
            self._run(lambda db: _drop(db, wanted), None)
        return entry

    def keep(self, entries: Sequence[Entry], merge: Callable[[Entry, Entry], Entry]) -> bool:
        """Write all entries or none, and return whether that was possible.

        `merge(old, new)` replaces an entry with the same key.
        """

        def write(db: sqlite3.Connection) -> bool:
            now = time.time_ns()
            db.execute("BEGIN IMMEDIATE")
            for new in entries:
                row = db.execute(SELECT + KEY, _key(new)).fetchone()
                old = row and _good(row, new)
                entry = merge(old, new) if old else new
                db.execute(INSERT, (*_key(entry), entry.body, entry.blob, entry.checksum, now))
            self._evict(db, now)
            db.execute("COMMIT")
            return True

        return self._run(write, False, make=True)

    def touch(self, entries: Sequence[Entry]) -> None:
        """Mark entries as used now, each once a process."""
        new = [entry for entry in entries if entry.key not in self._touched]
        if not new or not self._writable:  # `keep` warns of that
            return
        self._touched.update(entry.key for entry in new)
        rows = [(time.time_ns(), *_key(entry)) for entry in new]

        def write(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(f"UPDATE entries SET used = ?{KEY}", rows)
            db.execute("COMMIT")

        self._run(write, None)

    def entries(self, kind: str | None = None) -> list[Entry]:
        """Return all good entries, or those of a kind, in the order of their subjects."""
        condition, values = (" WHERE kind = ?", (kind,)) if kind else ("", ())
        return self._select(f"{condition} ORDER BY kind, subject, environment", values)

    def nearest(self, kind: str, subject: str) -> list[Entry]:
        """Return the entries of a subject in all environments, the last used first."""
        return self._select(" WHERE kind = ? AND subject = ? ORDER BY used DESC", (kind, subject))

    def verify(self) -> list[tuple[str, str]]:
        """Return (name, reason) for each damaged row, and for the file if it is damaged."""

        def look(db: sqlite3.Connection) -> list[tuple[str, str]]:
            lines = (" ".join(line.split()) for (line,) in db.execute("PRAGMA integrity_check"))
            wrong = [(NAME, line) for line in lines if line != "ok"]
            for row in db.execute(SELECT):
                if not _good(row):
                    wrong.append((str(row[1]), "the checksum does not fit the contents"))
            return wrong

        why = self.folder.unsafe()
        if why:
            return [(NAME, why)]
        try:
            with self.folder.locked(exclusive=False, patience=self._patience):
                return self._attempt(look)
        except FileNotFoundError:
            return []
        except (OSError, sqlite3.Error, _Damage) as error:
            return [(NAME, _reason(error))]

    def clear(self, kind: str | None = None) -> None:
        """Remove all entries, or those of a kind."""

        def remove(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM entries WHERE ? IN (kind, '')", (kind or "",))
            db.execute("VACUUM")

        self._run(remove, None)

    def _select(self, condition: str, values: Sequence[str]) -> list[Entry]:
        def read(db: sqlite3.Connection) -> list[Entry]:
            rows = db.execute(SELECT + condition, values)
            return [entry for row in rows if (entry := _good(row))]

        return self._run(read, [])

    def _evict(self, db: sqlite3.Connection, now: int) -> None:
        """Remove the least recently used entries if there are too many, but none used `now`."""
        room = self.limit
        while _size(db) > room:
            room = self.limit * 3 // 4  # so that this happens rarely
            (rows,) = db.execute("SELECT count(*) FROM entries").fetchone()
            if not db.execute(OLDEST, {"now": now, "rows": rows // 8 + 1}).rowcount:
                break

    @property
    def _writable(self) -> bool:
        return os.access(self.folder.path, os.W_OK, effective_ids=True)

    def _run(self, work: Work[T], failed: T, make: bool = False) -> T:
        """Return the result of `work`; `failed` if there is no database or it cannot be used.

        A damaged database is removed.  `make` creates a missing one.
        """
        if not self.folder.safe():
            return failed
        try:
            if make:
                self.folder.make()
            try:
                with self.folder.locked(exclusive=False, patience=self._patience):
                    return self._attempt(work, make)
            except _Damage:
                pass
            # With this lock no other process has the files open that are removed here.
            with self.folder.locked(exclusive=True, patience=self._patience):
                try:
                    return self._attempt(work, make)  # another process may have been first
                except _Damage as damage:
                    self._remove()
                    if damage.unexpected:
                        warn_once(f"{self.path} was damaged; it is made anew")
                return self._attempt(work, make)
        except FileNotFoundError:
            return failed
        except (OSError, sqlite3.Error) as error:
            busy = isinstance(error, TimeoutError) or _code(error) in BUSY
            # After a wait in vain, do not wait again for each of a hundred entries.
            self._patience = 0.0 if busy else self._patience
            self.folder.tell(_reason(error))
            return failed

    def _attempt(self, work: Work[T], make: bool = False) -> T:
        """Return the result of `work`; raises _Damage if the file is damaged."""
        try:
            with contextlib.closing(self._open(make)) as db:
                result = work(db)
        except UnicodeDecodeError as error:  # from an error message that quotes damaged text
            raise _Damage(str(error)) from None
        except sqlite3.Error as error:
            if _code(error) in REFUSED:
                raise
            raise _Damage(str(error)) from None
        self._patience = PATIENCE
        return result

    def _open(self, make: bool) -> sqlite3.Connection:
        """Return a connection; FileNotFoundError if the database is missing or empty."""
        if not (make or os.path.lexists(self.path)):
            raise FileNotFoundError(self.path)
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                why = others(status) if stat.S_ISREG(status.st_mode) else "is no file"
                if why:
                    raise _Damage(f"{path.name} {why}")
        mode = "rwc" if make else "rw" if self._writable else "ro&immutable=1"
        db = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=self._patience,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._prepare(db, make)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection, make: bool) -> None:
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        db.text_factory = lambda text: text.decode(errors="replace")  # the checksum rejects it
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA synchronous = NORMAL")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == SCHEMA:
            return
        if version:
            raise _Damage(f"schema {version}, not {SCHEMA}", unexpected=False)
        if not make:
            raise FileNotFoundError(self.path)
        self.path.chmod(0o600)  # SQLite gives its other files the same mode
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if not version:  # no other process was faster
            db.execute(CREATE)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")

    def _remove(self) -> None:
        for path in reversed(self._files()):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [self.path, *(self.path.with_name(f"{NAME}-{end}") for end in ("wal", "shm"))]


class _Damage(Exception):
    """The file is damaged, or `unexpected` is False: another version has written it."""

    def __init__(self, why: str, unexpected: bool = True) -> None:
        super().__init__(why)
        self.unexpected = unexpected


def _code(error: Exception) -> int | None:
    """Return the primary SQLite code of an error, or None."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _reason(error: Exception) -> str:
    """Return an error's message in one line, even if it quotes damaged text."""
    return " ".join((getattr(error, "strerror", None) or str(error)).split())[:200]


def _size(db: sqlite3.Connection) -> int:
    """Return the bytes that entries take in the file."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def _drop(db: sqlite3.Connection, wanted: Entry) -> None:
    """Remove a damaged row, unless another process has written it again."""
    db.execute("BEGIN IMMEDIATE")
    row = db.execute(SELECT + KEY, _key(wanted)).fetchone()
    if row and not _good(row, wanted):
        db.execute(f"DELETE FROM entries{KEY}", _key(wanted))
    db.execute("COMMIT")


def _key(entry: Entry) -> tuple[str, str, str]:
    return entry.kind, entry.subject, json.dumps(dict(entry.environment))


def _good(row: tuple[Any, ...], wanted: Entry | None = None) -> Entry | None:
    """Return the entry in a row if its checksum is right and its key is the wanted one."""
    kind, subject, environment, body, blob, checksum = row
    try:
        entry = Entry(kind, subject, tuple(json.loads(environment).items()), body, blob)
        if entry.checksum != checksum or (wanted and wanted.key != entry.key):
            return None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return entry
