"""Measurements on disk: entries in an SQLite database that many processes use at once.

A row holds an entry in clear text, its checksum, and the time of its last use.  A row with a wrong
checksum is a miss and is removed; a file that is no database of this schema is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from minigraph.cache import trust
from minigraph.cache.entry import Entry, environment_of
from minigraph.cache.folder import Folder
from minigraph.errors import reason, warn_once
from minigraph.platform import forks
from minigraph.platform.records import decode, encode, in_one_line

SCHEMA = 1  # a change makes everything on disk unknown
LIMIT = 64 << 20  # bytes of entries
MAX_VALUE = 16 << 20  # bytes of a text or blob, so that a damaged length costs little memory
PATIENCE = 3.0  # seconds to wait for other processes
LONGEST = 8.0  # seconds of one operation: no sound database takes so long
INSTRUCTIONS = 100_000  # of SQLite, after which the time is looked at
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

# What SQLite's primary codes say of a file (https://sqlite.org/rescode.html).
# Its bytes are damaged, or were never those of a database:
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Others use it; PROTOCOL is for the process that lost the race for a lock too often:
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
# After any other code the file stays.  The system refused (PERM, NOMEM, READONLY, IOERR, FULL,
# CANTOPEN, NOLFS), something stopped the statement (ABORT, INTERRUPT, SCHEMA, AUTH), an entry is
# larger than MAX_VALUE (TOOBIG), or it says nothing in particular (ERROR and the rest).

# A child that is forked while SQLite holds locks of its own would wait for them for ever.
_in_use = forks.awaited_lock()

T = TypeVar("T")
Environment = tuple[tuple[str, str], ...]
ROW = tuple[str, str, str, str, bytes, str]  # of SELECT
FIELDS = Decoder(dict[str, str])
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
        self._measuring = Folder(folder.absolute(), "measuring")  # locked by who measures
        self.limit = limit
        self.rejected = 0
        self._touched: set[str] = set()  # keys of entries that this process has marked as used
        self._patience = PATIENCE  # none after a wait in vain, until something can be written
        self._endless = False  # whether an operation took too long

    @contextlib.contextmanager
    def turn(self, patience: float) -> Iterator[bool]:
        """Let no other process or thread measure that uses this folder; give whether that is so.

        patience  seconds to wait for others, who lose their turn when they die
        """
        with contextlib.ExitStack() as held:
            alone = False
            with contextlib.suppress(OSError):  # too late, or nothing can be locked here
                held.enter_context(self._measuring.locked(True, patience, make=True))
                alone = True
            yield alone

    def find(self, wanted: Sequence[Entry]) -> list[Entry | None]:
        """Return for each entry the stored one with its key, or None."""

        def read(db: sqlite3.Connection) -> list[Any]:
            return [self._row_in_bounds(db, entry) for entry in wanted]

        rows = self._run(read, [None] * len(wanted)) if wanted else []
        found: list[Entry | None] = []
        for row, entry in zip(rows, wanted, strict=True):
            found.append(_good(row, entry) if row else None)
            if row and not found[-1]:
                self.rejected += 1
                self._run(functools.partial(_drop, wanted=entry), None)
        return found

    def _row_in_bounds(self, db: sqlite3.Connection, wanted: Entry) -> Any:
        """Return the row with the key of an entry; None if there is none, or it is too large."""
        try:
            return _row(db, wanted)
        except sqlite3.Error as error:
            if _code(error) != sqlite3.SQLITE_TOOBIG:
                raise
            self.folder.tell(_reason(error))
            return None

    def keep(self, entries: Sequence[Entry], merge: Callable[[Entry, Entry], Entry]) -> bool:
        """Write all entries or none, and return whether that was possible.

        `merge(old, new)` replaces an entry with the same key.
        """

        def write(db: sqlite3.Connection) -> bool:
            now = _now()
            db.execute("BEGIN IMMEDIATE")
            for new in entries:
                row = self._row_in_bounds(db, new)
                old = row and _good(row, new)
                entry = merge(old, new) if old else new
                db.execute(INSERT, (*_key(entry), entry.body, entry.blob, entry.checksum, now))
            self._evict(db, now)
            db.execute("COMMIT")
            return True

        kept = self._run(write, False, make=True)
        self._patience = PATIENCE if kept else self._patience
        return kept

    def touch(self, entries: Sequence[Entry]) -> None:
        """Mark entries as used now, each once a process, if nobody else writes now."""
        new = [entry for entry in entries if entry.key not in self._touched]
        if not new or not self._writable:  # `keep` warns of that
            return
        self._touched.update(entry.key for entry in new)
        rows = [(_now(), *_key(entry)) for entry in new]

        def write(db: sqlite3.Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(f"UPDATE entries SET used = ?{KEY}", rows)
            db.execute("COMMIT")

        self._run(write, None, waits=False)

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

        try:
            with self.folder.locked(exclusive=False, patience=self._patience) as folder:
                return self._attempt(folder, look, self._patience)
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

    def _run(self, work: Work[T], failed: T, make: bool = False, waits: bool = True) -> T:
        """Return the result of `work`; `failed` if there is no database or it cannot be used.

        A damaged database is removed.

        make   creates a missing one
        waits  for other processes; else it fails silently where they use it
        """
        patience = self._patience if waits else 0.0
        if self._endless:
            return failed
        try:
            try:
                with self.folder.locked(exclusive=False, patience=patience, make=make) as folder:
                    return self._attempt(folder, work, patience, make)
            except _Damage:
                pass
            # With this lock no other process has the files open that are removed here.
            with self.folder.locked(exclusive=True, patience=patience) as folder:
                try:
                    # Another process may have been first.
                    return self._attempt(folder, work, patience, make)
                except _Damage as damage:
                    self._remove()
                    if damage.unexpected:
                        warn_once(f"{self.path} was damaged; it is made anew")
                return self._attempt(folder, work, patience, make)
        except FileNotFoundError:
            return failed
        except (OSError, sqlite3.Error, _Damage) as error:  # _Damage: it is damaged again
            busy = isinstance(error, TimeoutError) or _code(error) in BUSY
            if waits or not busy:
                # After a wait in vain, do not wait again for each of a hundred entries.
                self._patience = 0.0 if busy else self._patience
                self._endless = _code(error) == sqlite3.SQLITE_INTERRUPT
                self.folder.tell(_reason(error))
            return failed

    def _attempt(self, folder: int, work: Work[T], patience: float, make: bool = False) -> T:
        """Return the result of `work`; raises _Damage if the file is damaged."""
        try:
            with _in_use, contextlib.closing(self._open(folder, patience, make)) as db:
                return work(db)
        except UnicodeDecodeError as error:  # from an error message that quotes damaged text
            raise _Damage(str(error)) from None
        except sqlite3.Error as error:
            if _code(error) in DAMAGED:
                raise _Damage(str(error)) from None
            raise

    def _open(self, folder: int, patience: float, make: bool) -> sqlite3.Connection:
        """Return a connection; FileNotFoundError if the database is missing or empty.

        SQLite takes a path, not the folder's descriptor.  The folder is trusted and stays so: no
        other user can put another one in its place.
        """
        if not (make or os.path.lexists(self.path)):
            raise FileNotFoundError(self.path)
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                why = trust.foreign(folder, path.name)
                if why:
                    raise _Damage(f"{path.name} {why}")
        # The versions that a file is written and read by (SQLite, Database File Format): of another
        # one SQLite reads it, and says with each write that nobody may.
        if not {*_versions(self.path)} <= {1, 2}:
            raise _Damage("its header asks for another SQLite")
        mode = "rwc" if make else "rw" if self._writable else "ro&immutable=1"
        db = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}",
            uri=True,
            timeout=patience,
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
        until = time.monotonic() + LONGEST
        db.set_progress_handler(lambda: time.monotonic() > until, INSTRUCTIONS)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        db.text_factory = lambda text: text.decode(errors="replace")  # the checksum rejects it
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA synchronous = NORMAL")
        if _has_entries(db):
            return
        if not make:
            raise FileNotFoundError(self.path)
        self.path.chmod(0o600)  # SQLite gives its other files the same mode
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("BEGIN IMMEDIATE")
        if not _has_entries(db):  # no other process was faster
            db.execute(CREATE)
            db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute("COMMIT")

    def _remove(self) -> None:
        for path in reversed(self._files()):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        others = (self.path.with_name(f"{NAME}-{end}") for end in ("wal", "shm", "journal"))
        return [self.path, *others]


class _Damage(Exception):
    """The file is damaged, or `unexpected` is False: another version has written it."""

    def __init__(self, why: str, unexpected: bool = True) -> None:
        super().__init__(why)
        self.unexpected = unexpected


def _has_entries(db: sqlite3.Connection) -> bool:
    """Return whether the table is there; raises _Damage if there is anything else."""
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        schema = db.execute("SELECT name, sql FROM sqlite_master LIMIT 2").fetchall()
    except sqlite3.Error as error:
        if _code(error) == sqlite3.SQLITE_ERROR:  # which these statements have in no sound file
            raise _Damage(str(error)) from None
        raise
    if version not in (0, SCHEMA):
        raise _Damage(f"schema {version}, not {SCHEMA}", unexpected=False)
    if schema != ([("entries", CREATE)] if version else []):
        raise _Damage("it has not the table of entries, or not that alone")
    return bool(version)


def _versions(path: Path) -> bytes:
    """Return the two versions in a database's header, nothing of a file that has none."""
    header = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        header = file.read(20)
    return header[18:] if header.startswith(b"SQLite format 3\0") else b""


def _code(error: Exception) -> int | None:
    """Return the primary SQLite code of an error, or None."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _reason(error: Exception) -> str:
    """Return an error's message in one line, even if it quotes damaged text."""
    return " ".join(reason(error).split())[:200]


def _size(db: sqlite3.Connection) -> int:
    """Return the bytes that entries take in the file."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - free) * size)


def _now() -> int:
    """Return the time in nanoseconds, as far as SQLite's integers reach: to the year 2262."""
    return min(time.time_ns(), 2**63 - 1)


def _drop(db: sqlite3.Connection, wanted: Entry) -> None:
    """Remove a damaged row, unless another process has written it again."""
    db.execute("BEGIN IMMEDIATE")
    row = _row(db, wanted)
    if row and not _good(row, wanted):
        db.execute(f"DELETE FROM entries{KEY}", _key(wanted))
    db.execute("COMMIT")


def _key(entry: Entry) -> tuple[str, str, str]:
    return entry.kind, entry.subject, encode(dict(entry.environment))


def _row(db: sqlite3.Connection, wanted: Entry) -> Any:
    """Return the row with the key of an entry; None if there is none."""
    return db.execute(SELECT + KEY, _key(wanted)).fetchone()


def _good(row: tuple[Any, ...], wanted: Entry | None = None) -> Entry | None:
    """Return the entry in a row if its checksum is right and its key is the wanted one."""
    try:
        kind, subject, environment, body, blob, checksum = msgspec.convert(row, ROW)
        fields = decode(FIELDS, environment)
        entry = Entry(kind, subject, environment_of(fields), in_one_line(body), blob)
    except ValueError:
        return None
    whole = entry.checksum == checksum and entry.body == body
    return entry if whole and (wanted is None or wanted.key == entry.key) else None
