"""The SQLite database of the cache folder and of cache files.

    entries  a row for each entry in clear text, with its checksum and the time of its last use
    blobs    machine code by its digest; kernels that were compiled together share a row
    fields   the environment of a file, by name; empty in the cache folder

Databases are not trusted: a database with another table, view or trigger is rejected, and a row
with a wrong checksum is ignored.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.json import Decoder

from minigraph.errors import reason
from minigraph.platform.records import decode, encode, one_line

MEASUREMENTS = ("onednn", "cudnn")  # of the libraries' algorithms
KINDS = (*MEASUREMENTS, "jit")  # and kernels

SCHEMA = 2  # databases with another number are not read
MAX_VALUE = 64 << 20  # bytes of a text or blob, so that a damaged length costs little memory
MAX_SECONDS = 8.0  # seconds of one operation; only damaged databases take longer
TIMEOUT_INTERVAL = 100_000  # SQLite's instructions between two checks of the time
MAGIC = b"SQLite format 3\0"
# In the header, the versions of the format for writing and reading: 2 means a write-ahead log.
FORMAT_VERSION_BYTES = slice(18, 20)

TABLES = {
    "blobs": """CREATE TABLE blobs (
    digest TEXT NOT NULL PRIMARY KEY, blob BLOB NOT NULL) WITHOUT ROWID""",
    "entries": """CREATE TABLE entries (
    kind TEXT NOT NULL, subject TEXT NOT NULL, environment TEXT NOT NULL, body TEXT NOT NULL,
    digest TEXT NOT NULL, checksum TEXT NOT NULL, used REAL NOT NULL,
    PRIMARY KEY (kind, subject, environment)) WITHOUT ROWID""",
    "fields": """CREATE TABLE fields (
    name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID""",
}
SELECT_ENTRIES = "SELECT kind, subject, environment, body, digest, checksum, used FROM entries"
WHERE_KEY = " WHERE kind = ? AND subject = ? AND environment = ?"
DELETE_UNUSED_BLOBS = "DELETE FROM blobs WHERE digest NOT IN (SELECT digest FROM entries)"

WRONG_CHECKSUM = "is damaged: its checksum is not that of its contents"

EntryRow = tuple[str, str, str, str, str, str, float]  # of SELECT_ENTRIES
FIELDS_DECODER = Decoder(dict[str, str])

# SQLite's primary codes for a file whose bytes are damaged, or were never those of a database
# (https://sqlite.org/rescode.html).
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


@dataclass(frozen=True)
class Entry:
    """A stored result.

    kind         one of KINDS
    subject      text of the problem that was measured, or the kernel's name
    environment  names and values for which the result is valid: versions, processor, …
    body         the result, as JSON text
    blob         machine code with the kernel; kernels that were compiled together share it
    """

    kind: str
    subject: str
    environment: tuple[tuple[str, str], ...]
    body: str
    blob: bytes = b""

    @property
    def key(self) -> str:
        """64 hexadecimal digits, equal for entries of one subject in one environment."""
        return _digest(self.kind, self.subject, *map(" = ".join, self.environment))

    def checksum(self, blob_digest: str) -> str:
        """Return 64 hexadecimal digits that cover the whole entry, given its blob's digest."""
        return _digest(self.key, self.body, blob_digest)


def environment_of(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the fields of an environment as entries hold them: sorted by name."""
    return tuple(sorted(fields.items()))


def differences(current: Mapping[str, str], stored: Mapping[str, str]) -> list[str]:
    """Return a sentence for each field in which two environments differ."""
    return [
        f"{name} is {stored.get(name)!r} there, {current.get(name)!r} here"
        for name in dict.fromkeys((*current, *stored))
        if current.get(name) != stored.get(name)
    ]


def digest_of(blob: bytes) -> str:
    """Return 64 hexadecimal digits for a blob, and "" for an empty one."""
    return hashlib.sha256(blob).hexdigest() if blob else ""


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


class DamagedDatabase(Exception):
    """The database is damaged, or `foreign`: another version has written it."""

    def __init__(self, fault: str, foreign: bool = False) -> None:
        super().__init__(fault)
        self.foreign = foreign


def set_limits(db: sqlite3.Connection) -> None:
    """Set limits for a database that may be damaged."""
    deadline = time.monotonic() + MAX_SECONDS
    db.set_progress_handler(lambda: time.monotonic() > deadline, TIMEOUT_INTERVAL)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    db.text_factory = lambda text: text.decode(errors="replace")  # the checksum rejects it
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")


def has_tables(db: sqlite3.Connection) -> bool:
    """Return whether the tables exist; raise DamagedDatabase if anything else exists."""
    try:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        schema = db.execute("SELECT name, sql FROM sqlite_master ORDER BY name LIMIT 4").fetchall()
    except sqlite3.Error as error:
        if primary_code(error) == sqlite3.SQLITE_ERROR:  # only in damaged files
            raise DamagedDatabase(str(error)) from None
        raise
    if version not in (0, SCHEMA):
        raise DamagedDatabase(
            f"has schema {version}; this version of minigraph reads {SCHEMA}", True
        )
    if schema != (list(TABLES.items()) if version else []):
        raise DamagedDatabase("does not have exactly the tables of a cache")
    return bool(version)


def create(db: sqlite3.Connection) -> None:
    for statement in TABLES.values():
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA}")


def insert(db: sqlite3.Connection, entries: Iterable[Entry], used: float) -> None:
    """Write entries, replacing those with the same keys, and each of their blobs once."""
    digests: dict[bytes, str] = {}
    for entry in entries:
        if entry.blob not in digests:
            digests[entry.blob] = digest_of(entry.blob)
            if entry.blob:
                row: tuple[Any, ...] = (digests[entry.blob], entry.blob)
                db.execute("INSERT OR REPLACE INTO blobs VALUES (?, ?)", row)
        digest = digests[entry.blob]
        row = (*key_of(entry), entry.body, digest, entry.checksum(digest), used)
        db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)


class Reader:
    """Reads entries of a database, and each of their blobs once.

    use_times  the time of the last use of each good entry that was read, by key
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._blobs: dict[str, bytes | None] = {"": b""}
        self.use_times: dict[str, float] = {}

    def find(self, key_entry: Entry) -> tuple[bool, Entry | None]:
        """Return whether a row has the key of an entry, and the row's entry if it is good."""
        try:
            row = self._db.execute(SELECT_ENTRIES + WHERE_KEY, key_of(key_entry)).fetchone()
            entry = row and self._entry(row)
        except sqlite3.Error as error:
            if primary_code(error) != sqlite3.SQLITE_TOOBIG:
                raise
            return True, None
        # A damaged index finds other rows.
        return bool(row), entry if entry and entry.key == key_entry.key else None

    def select(self, where: str, values: Sequence[str] = ()) -> Iterator[tuple[str, Entry | None]]:
        """Yield the subject of each row, and its entry if it is undamaged."""
        for row in self._db.execute(SELECT_ENTRIES + where, values):
            yield str(row[1]), self._entry(row)

    def _entry(self, row: tuple[Any, ...]) -> Entry | None:
        try:
            values = msgspec.convert(row, EntryRow)
            kind, subject, environment, body, digest, checksum, used = values
            fields = decode(FIELDS_DECODER, environment)
        except ValueError:
            return None
        blob = self._blob(digest)
        if blob is None:
            return None
        entry = Entry(kind, subject, environment_of(fields), body, blob)
        if entry.checksum(digest) != checksum:
            return None
        self.use_times[entry.key] = used
        return entry

    def _blob(self, digest: str) -> bytes | None:
        """Return the blob with this digest; None if it is missing or damaged."""
        if digest not in self._blobs:
            row = self._db.execute("SELECT blob FROM blobs WHERE digest = ?", (digest,)).fetchone()
            intact = row and isinstance(row[0], bytes) and digest_of(row[0]) == digest
            self._blobs[digest] = row[0] if intact else None
        return self._blobs[digest]


def key_of(entry: Entry) -> tuple[str, str, str]:
    return entry.kind, entry.subject, encode(dict(entry.environment))


def primary_code(error: Exception) -> int | None:
    """Return the primary SQLite code of an error, or None."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def in_one_line(error: Exception) -> str:
    """Return an error's message in one line, even if it quotes damaged text."""
    return one_line(reason(error))[:200]
