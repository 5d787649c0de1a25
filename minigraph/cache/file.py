"""A cache file, which users save, copy and load: lines of JSON that a person can read.

The first line says what the file was saved for, and each other line is one entry:

    {"file": "minigraph cache", "schema": 1, "fields": {"graph": "9f2c…", …}, "entries": 2, …}
    {"kind": "onednn", "subject": "…", "environment": {…}, "body": …, "blob": "", "checksum": "…"}
    {"kind": "jit", …}

A file may come from anywhere.  Reading neither runs nor unpickles anything, and a line that is not
exactly as it was written is rejected with a reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, structs
from msgspec.json import Decoder

from minigraph.cache import temporary, trust
from minigraph.cache.entry import KINDS, Entry, environment_of
from minigraph.cache.folder import lock
from minigraph.errors import CacheError, reason
from minigraph.platform import regular_file
from minigraph.platform.records import Record, decode, encode, in_one_line

PathLike = str | os.PathLike[str]

FILE = "minigraph cache"
SCHEMA = 1  # files of another schema are rejected
LIMIT = 512 << 20  # bytes of a file
SECONDS = 30.0  # for which a writer waits for others
UNFINISHED = ".minigraph-", ".tmp"  # how the names of unfinished files begin and end


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a file holds.

    fields    the environment that it was saved for
    entries   those that are exactly as they were written
    rejected  (name, reason) for each of the others: the entry's subject, its line, or the file
    unsafe    why other users may have changed what was read, so that machine code in it must not
              run; or an empty string
    """

    fields: dict[str, str]
    entries: list[Entry]
    rejected: list[tuple[str, str]]
    unsafe: str = ""


class _Kind(msgspec.Struct):
    """What first lines of all schemas begin with."""

    file: str = ""
    schema: int = 0


class _Header(Record, frozen=True):
    """The first line."""

    file: str
    schema: int
    fields: dict[str, str]
    entries: Annotated[int, Meta(ge=0)]
    checksum: str


class _Subject(msgspec.Struct):
    """What a line that is no entry may still say."""

    subject: str = ""


class _Line(Record, frozen=True):
    """Another line: an entry, its body as it was written, and its blob in base64."""

    kind: str
    subject: str
    environment: dict[str, str]
    body: Raw
    blob: bytes
    checksum: str


KIND, HEADER = Decoder(_Kind), Decoder(_Header)
LINE, SUBJECT = Decoder(_Line), Decoder(_Subject)

# ---------------------------------------------------------------- reading


def read(path: PathLike) -> Contents:
    """Return what a file holds; whatever is wrong with it is in `rejected`, and no error."""
    unsafe = ""
    try:
        try:
            data = _bytes(path, lambda name, flags: trust.open_file(Path(name)))
        except trust.Untrusted as error:
            unsafe = str(error.strerror)
            data = _bytes(path, regular_file.without_waiting)
        return dataclasses.replace(_parse(data, str(path)), unsafe=unsafe)
    except FileNotFoundError:
        why = "there is no such file"
    except (OSError, ValueError) as error:
        why = reason(error)
    return Contents({}, [], [(str(path), why)])


def _bytes(path: PathLike, opener: Callable[[str, int], int]) -> bytes:
    """Return what a file holds that `opener` opens without waiting for the writer of a pipe."""
    file, size = regular_file.open_to_read(path, opener)
    with file:
        if size > LIMIT:
            raise OSError(errno.EFBIG, f"is larger than {LIMIT} bytes")
        return file.read(LIMIT)


def _parse(data: bytes, name: str) -> Contents:
    """Return what the lines of a file hold; ValueError if its first line is damaged."""
    first, *lines = data.split(b"\n")
    header = _header(first)
    entries: list[Entry] = []
    rejected: list[tuple[str, str]] = []
    if lines and not lines[-1]:  # the last line ends with a newline
        lines.pop()
    for number, line in enumerate(lines, 2):
        try:
            entries.append(_entry(line))
        except ValueError as error:
            rejected.append((_subject(line) or f"line {number}", str(error)))
    if len(lines) < header.entries:
        missing = f"{header.entries - len(lines)} of {header.entries} entries are missing"
        rejected.append((name, f"is cut off: {missing}"))
    return Contents(header.fields, entries, rejected)


def _header(line: bytes) -> _Header:
    """Return what a first line says; ValueError if it is damaged."""
    if not line:
        raise ValueError("is empty, or its first line is")
    try:
        kind = decode(KIND, line)
    except ValueError:
        kind = _Kind()
    if kind.file != FILE:
        raise ValueError("is no cache file of minigraph, or its first line is damaged")
    if kind.schema != SCHEMA:
        raise ValueError(f"has schema {kind.schema}; this version of minigraph reads {SCHEMA}")
    try:
        header = decode(HEADER, line)
    except ValueError as error:
        raise ValueError(f"is damaged: its first line {error}") from None
    if _first_line(header.fields, header.entries).encode() != line:
        raise ValueError("is damaged: the checksum of its first line is not that of its contents")
    return header


def _entry(text: bytes) -> Entry:
    """Return the entry of a line; ValueError says why it is none."""
    line = decode(LINE, text)
    if line.kind not in KINDS:
        raise ValueError(f"is of a kind that is not known: {line.kind:.40}")
    body = bytes(line.body).decode()
    entry = Entry(line.kind, line.subject, environment_of(line.environment), body, line.blob)
    if entry.checksum != line.checksum:
        raise ValueError("is damaged: its checksum is not that of its contents")
    if _line(entry).encode() != text:
        raise ValueError("is not as it was written: a name stands twice, or parts are exchanged")
    return entry


def _subject(line: bytes) -> str:
    """Return what the entry of a rejected line is about, or an empty string."""
    try:
        return decode(SUBJECT, line).subject
    except ValueError:
        return ""


# ---------------------------------------------------------------- writing


def write(
    path: PathLike,
    fields: Mapping[str, str],
    entries: Sequence[Entry],
    merge: Callable[[Entry, Entry], Entry],
) -> None:
    """Write entries to a file, beside the good ones that it holds.

    `merge(old, new)` replaces an entry with the same key.  Readers see the file before or after,
    even if this process is killed, and no writer loses the entries of another one.  A link stays a
    link, but another user's is refused.  CacheError if the file cannot be written.
    """
    try:
        with _target(path) as (folder, name), _alone(folder):
            merged: dict[str, Entry] = {}
            for entry in (*_present(folder, name), *entries):
                old = merged.get(entry.key, entry)
                merged[entry.key] = entry if old == entry else merge(old, entry)
            data = _text(fields, list(merged.values()))
            temporary.write(folder, name, *UNFINISHED, data)
    except (OSError, ValueError) as error:
        raise CacheError(f"{path} cannot be written: {reason(error)}") from error


@contextlib.contextmanager
def _target(path: PathLike) -> Iterator[tuple[int, str]]:
    """Give a descriptor of the folder that a path leads to, and the name there, of no link."""
    target = regular_file.followed(path)
    folder = os.open(target.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield folder, target.name
    finally:
        os.close(folder)


@contextlib.contextmanager
def _alone(folder: int) -> Iterator[None]:
    """Keep other writers out of a folder; go on if it cannot be locked in time."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            handle = stack.enter_context(trust.listed(folder))
            stack.enter_context(lock(handle, True, SECONDS))
            temporary.clear(folder, *UNFINISHED, age=0.0)
        yield


def _present(folder: int, name: str) -> list[Entry]:
    """Return the entries of a file; OSError if the file must not be replaced."""
    try:
        data = _bytes(name, lambda name, flags: os.open(name, trust.FILE, dir_fd=folder))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EFBIG):
            return []
        raise
    try:
        return _parse(data, name).entries
    except ValueError:
        return []


def _text(fields: Mapping[str, str], entries: list[Entry]) -> bytes:
    lines = [_first_line(fields, len(entries))]
    for entry in sorted(entries, key=lambda entry: (entry.kind, entry.subject, entry.key)):
        # The checksum is that of the entry as it will be read: its body is one line.
        lines.append(_line(dataclasses.replace(entry, body=in_one_line(entry.body))))
    data = "".join(f"{line}\n" for line in lines).encode()
    if len(data) > LIMIT:
        raise OSError(errno.EFBIG, f"it would be larger than {LIMIT} bytes")
    return data


def _first_line(fields: Mapping[str, str], count: int) -> str:
    blank = _Header(FILE, SCHEMA, dict(fields), count, "")
    digest = hashlib.sha256(encode(blank).encode()).hexdigest()
    return encode(structs.replace(blank, checksum=digest))


def _line(entry: Entry) -> str:
    return encode(
        _Line(
            entry.kind,
            entry.subject,
            dict(entry.environment),
            Raw(entry.body),
            entry.blob,
            entry.checksum,
        )
    )
