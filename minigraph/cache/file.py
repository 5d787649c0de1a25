"""A cache file, which users save, copy and load: a database like that of the cache folder.

Files are not trusted.  A file is read as bytes and opened in memory, so reading it neither runs
code nor opens another file, and damaged entries are rejected with a reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from minigraph.cache import database
from minigraph.cache.database import FORMAT_VERSION_BYTES, KINDS, MAGIC, DamagedDatabase, Entry
from minigraph.errors import CacheError, reason
from minigraph.platform import regular_file, trust

PathLike = str | os.PathLike[str]

SIZE_LIMIT = 512 << 20  # bytes of a file


@dataclass
class Contents:
    """The contents of a file.

    fields    the environment for which it was saved
    entries   the undamaged entries
    rejected  (name, reason) of each other entry; the name is its subject, or the file
    unsafe    why another user could have changed the file, so that its machine code must not run;
              "" if no other user could
    """

    fields: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    rejected: list[tuple[str, str]] = field(default_factory=list)
    unsafe: str = ""


def read(path: PathLike) -> Contents:
    """Return the contents of a file; list faults in `rejected`, without raising an error."""
    contents = Contents()
    try:
        try:
            trust.check_folder(Path(path), file=True)
        except trust.Untrusted as error:
            contents.unsafe = str(error.strerror)
        _parse(regular_file.read(path, SIZE_LIMIT), contents)
    except FileNotFoundError:
        contents.rejected.append((str(path), "does not exist"))
    except sqlite3.Error as error:
        contents.rejected.append((str(path), f"is damaged: {database.in_one_line(error)}"))
    except (OSError, ValueError, DamagedDatabase) as error:
        contents.rejected.append((str(path), reason(error)))
    return contents


def _parse(data: bytes, contents: Contents) -> None:
    """Add a database to `contents`.

    Raises ValueError, DamagedDatabase or sqlite3.Error if it is damaged.
    """
    if not data:
        raise ValueError("is empty")
    if not data.startswith(MAGIC):
        raise ValueError("is no cache file of minigraph, or its beginning is damaged")
    # SQLite's header has the size of a page, where 1 means 65536, and the number of pages.
    page, pages = int.from_bytes(data[16:18]), int.from_bytes(data[28:32])
    size = (65536 if page == 1 else page) * pages
    if len(data) != size:
        raise ValueError(f"is cut off or damaged: it has {len(data)} bytes, and was {size} long")
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        # A database in memory cannot have a write-ahead log, as that of a cache folder has.
        begin, end = FORMAT_VERSION_BYTES.start, FORMAT_VERSION_BYTES.stop
        db.deserialize(data[:begin] + b"\1\1" + data[end:])
        database.set_limits(db)
        if not database.has_tables(db):
            raise ValueError("is no cache file of minigraph: it has no tables")
        rows = db.execute("SELECT name, value FROM fields").fetchall()
        contents.fields = dict(msgspec.convert(rows, list[tuple[str, str]]))
        for subject, entry in database.Reader(db).select(""):
            if entry is None:
                contents.rejected.append((subject, database.WRONG_CHECKSUM))
            elif entry.kind not in KINDS:
                contents.rejected.append((subject, f"has an unknown kind: {entry.kind:.40}"))
            else:
                contents.entries.append(entry)


def write(
    path: PathLike,
    fields: Mapping[str, str],
    entries: Sequence[Entry],
    merge: Callable[[Entry, Entry], Entry],
) -> None:
    """Add entries to a file, and keep its undamaged entries.

    `merge(old, new)` replaces an entry with the same key.  The write is atomic, even if the process
    is killed, and keeps the entries of concurrent writers.  If the path is a link, its target is
    written, unless the link belongs to another user.  Raises CacheError if the file cannot be
    written.
    """

    def merged() -> bytes:
        by_key = {entry.key: entry for entry in read(path).entries}
        for entry in entries:
            old = by_key.get(entry.key, entry)
            by_key[entry.key] = entry if old == entry else merge(old, entry)
        return _serialized(fields, by_key.values())

    try:
        regular_file.update(path, merged, mode=0o600)
    except (OSError, ValueError, sqlite3.Error) as error:
        raise CacheError(f"{path} cannot be written: {reason(error)}") from error


def _serialized(fields: Mapping[str, str], entries: Iterable[Entry]) -> bytes:
    """Return a database; equal contents give equal bytes."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        database.set_limits(db)
        database.create(db)
        db.executemany("INSERT INTO fields VALUES (?, ?)", sorted(fields.items()))
        database.insert(db, sorted(entries, key=database.key_of), used=0)
        data = db.serialize()
    if len(data) > SIZE_LIMIT:
        raise OSError(errno.EFBIG, f"it would be larger than {SIZE_LIMIT} bytes")
    return data
