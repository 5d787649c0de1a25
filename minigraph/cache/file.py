"""A cache file, which users save, copy and load: lines of JSON that a person can read.

The first line says what the file was saved for, and each other line is one entry:

    {"file": "minigraph cache", "schema": 1, "fields": {"graph": "9f2c…", …}, "entries": 2, …}
    {"kind": "onednn", "subject": "…", "environment": {…}, "body": …, "blob": "", "checksum": "…"}
    {"kind": "jit", …}

A file may come from anywhere.  Reading neither runs nor unpickles anything, and a line that is not
exactly as it was written is rejected with a reason.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from minigraph.cache.entry import KINDS, Entry, environment_of
from minigraph.cache.folder import Folder, others
from minigraph.errors import CacheError

PathLike = str | os.PathLike[str]

FILE = "minigraph cache"
SCHEMA = 1  # files of another schema are rejected
LIMIT = 512 << 20  # bytes of a file
SECONDS = 30.0  # for which a writer waits for others
PARTS = {"kind", "subject", "environment", "body", "blob", "checksum"}
TEMPORARY = ".minigraph-", ".tmp"  # how the names of unfinished files begin and end


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a file holds.

    fields    the environment that it was saved for
    entries   those that are exactly as they were written
    rejected  (name, reason) for each of the others: the entry's subject, its line, or the file
    """

    fields: dict[str, str]
    entries: list[Entry]
    rejected: list[tuple[str, str]]


# ---------------------------------------------------------------- reading


def read(path: PathLike) -> Contents:
    """Return what a file holds; whatever is wrong with it is in `rejected`, and no error."""
    try:
        return _parse(_bytes(path), str(path))
    except FileNotFoundError:
        why = "there is no such file"
    except (OSError, ValueError) as error:
        why = _reason(error)
    return Contents({}, [], [(str(path), why)])


def _bytes(path: PathLike) -> bytes:
    # O_NONBLOCK: never wait for the writer of a pipe.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is no regular file")
        if status.st_size > LIMIT:
            raise OSError(errno.EFBIG, f"is larger than {LIMIT} bytes")
        return file.read(LIMIT)


def _parse(data: bytes, name: str) -> Contents:
    """Return what the lines of a file hold; ValueError if its first line is damaged."""
    first, *lines = data.split(b"\n")
    fields, count = _header(first)
    entries: list[Entry] = []
    rejected: list[tuple[str, str]] = []
    if lines and not lines[-1]:  # the last line ends with a newline
        lines.pop()
    for number, line in enumerate(lines, 2):
        subject = ""
        try:
            value = _json(line)
            subject = str(value.get("subject", "")) if isinstance(value, dict) else ""
            entries.append(_entry(value))
        except (ValueError, RecursionError) as error:
            rejected.append((subject or f"line {number}", str(error)))
    if len(lines) < count:
        rejected.append((name, f"is cut off: {count - len(lines)} of {count} entries are missing"))
    return Contents(fields, entries, rejected)


def _header(line: bytes) -> tuple[dict[str, str], int]:
    """Return the fields and the number of entries of a first line; ValueError if it is damaged."""
    if not line:
        raise ValueError("is empty, or its first line is")
    try:
        value = _json(line)
        schema = value["schema"] if value["file"] == FILE else None
    except (ValueError, TypeError, LookupError):
        schema = None
    if type(schema) is not int:
        raise ValueError("is no cache file of minigraph, or its first line is damaged")
    if schema != SCHEMA:
        raise ValueError(f"has schema {schema}; this version of minigraph reads {SCHEMA}")
    fields, count = value.get("fields"), value.get("entries")
    if not _texts(fields) or type(count) is not int or value != _first_line(fields, count):
        raise ValueError("is damaged: the checksum of its first line is not that of its contents")
    return fields, count


def _entry(value: Any) -> Entry:
    """Return the entry of a line; ValueError says why it is none."""
    if not isinstance(value, dict) or value.keys() != PARTS:
        raise ValueError(f"is no entry: its parts are not {', '.join(sorted(PARTS))}")
    if value["kind"] not in KINDS:
        raise ValueError(f"is of a kind that is not known: {value['kind']!s:.40}")
    if not _texts(value["environment"]):
        raise ValueError("has an environment that does not map names to texts")
    if not _texts({"subject": value["subject"], "blob": value["blob"]}):
        raise ValueError("has a subject or a blob that is no text")
    entry = Entry(
        value["kind"],
        value["subject"],
        environment_of(value["environment"]),
        json.dumps(value["body"]),
        base64.b64decode(value["blob"], validate=True),
    )
    if entry.checksum != value["checksum"]:
        raise ValueError("is damaged: its checksum is not that of its contents")
    return entry


def _json(line: bytes) -> Any:
    """Return the value of a line; ValueError says why it has none."""
    try:
        return json.loads(line.decode(), object_pairs_hook=_object)
    except UnicodeDecodeError:
        raise ValueError("is damaged: it is no text") from None
    except json.JSONDecodeError:
        raise ValueError("is cut off, or no JSON") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("has a name twice")
    return value


def _texts(value: Any) -> bool:
    """Return whether this is a mapping of texts to texts that can all be encoded."""
    try:
        "".join([*value, *value.values()]).encode()
    except (AttributeError, TypeError, UnicodeEncodeError):
        return False
    return True


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
    link.  CacheError if the file cannot be written.
    """
    try:
        target = Path(os.path.realpath(path))
        with _alone(target.parent):
            merged: dict[str, Entry] = {}
            for entry in (*_present(target), *entries):
                old = merged.get(entry.key, entry)
                merged[entry.key] = entry if old == entry else merge(old, entry)
            _replace(target, _text(fields, list(merged.values())))
    except (OSError, ValueError) as error:
        raise CacheError(f"{path} cannot be written: {_reason(error)}") from error


def _present(target: Path) -> list[Entry]:
    """Return the entries of a file; OSError if the file must not be replaced."""
    try:
        data = _bytes(target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EFBIG):
            return []
        raise
    try:
        return _parse(data, str(target)).entries
    except ValueError:
        return []


def _text(fields: Mapping[str, str], entries: list[Entry]) -> bytes:
    lines: list[dict[str, Any]] = [_first_line(fields, len(entries))]
    for entry in sorted(entries, key=lambda entry: (entry.kind, entry.subject, entry.key)):
        lines.append(_line(entry))
    data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    if len(data) > LIMIT:
        raise OSError(errno.EFBIG, f"it would be larger than {LIMIT} bytes")
    return data


def _first_line(fields: Mapping[str, str], count: int) -> dict[str, Any]:
    line = {"file": FILE, "schema": SCHEMA, "fields": dict(fields), "entries": count}
    return {**line, "checksum": hashlib.sha256(json.dumps(line).encode()).hexdigest()}


def _line(entry: Entry) -> dict[str, Any]:
    body = json.loads(entry.body)
    # The checksum is that of the entry as it will be read: without the spaces of its body.
    entry = dataclasses.replace(entry, body=json.dumps(body))
    return {
        "kind": entry.kind,
        "subject": entry.subject,
        "environment": dict(entry.environment),
        "body": body,
        "blob": base64.b64encode(entry.blob).decode(),
        "checksum": entry.checksum,
    }


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder; go on if it cannot be locked in time."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            stack.enter_context(Folder(folder.parent, folder.name).locked(True, SECONDS))
            for left in folder.glob("*".join(TEMPORARY)):  # files of writers that were killed
                left.unlink()
        yield


def _replace(target: Path, data: bytes) -> None:
    """Write a file that only we can read, and rename it to `target`."""
    handle, temporary = tempfile.mkstemp(TEMPORARY[1], TEMPORARY[0], target.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):  # the file was renamed
            os.unlink(temporary)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# ---------------------------------------------------------------- who else may have written


def unsafe(path: PathLike) -> str:
    """Return why machine code from a file must not run, or an empty string.

    A user who can change or replace the file could run code as this user.
    """
    try:
        for file in {Path(path).absolute(), Path(os.path.realpath(path))}:
            status, folder = file.stat(), file.parent.stat()
            if why := others(status):
                return why
            # In a folder with the sticky bit, such as /tmp, only owners replace files.
            why = others(folder)
            if why and not (folder.st_mode & stat.S_ISVTX and folder.st_uid in (0, os.geteuid())):
                return f"is in a folder that {why}"
    except (OSError, ValueError) as error:
        return f"cannot be looked at: {_reason(error)}"
    return ""
