"""Kernel binaries on disk: units of machine code, and for each kernel an entry that names its unit.

A unit is a shared object with some kernels; its file is named by a hash of its bytes.  An entry is
a JSON file named by a hash of all that the kernel's machine code depends on:

    {"kernel": "mg_4c1f…", "key": {"compiler": "/usr/bin/cc", "processor": "x86_64 …", …},
     "schema": 1, "sha256": "93ab…", "unit": "93ab….so"}
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.json import Decoder

from minigraph.cache.entry import Entry, environment_of
from minigraph.cache.folder import Folder
from minigraph.platform.records import Record, decode, encode

SCHEMA = 1  # of entries and units: a change makes all that is on disk unknown
LIMIT = 256 << 20  # bytes of units
MAX_ENTRY = 1 << 16  # bytes
OF_THE_KERNEL = ("support", "text")  # parts of a key; the others say where machine code holds


Environment = tuple[tuple[str, str], ...]
Key = dict[str, str]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Kept(Record, frozen=True):
    """What an entry's file says: a kernel, its key, and its unit with the hash of that."""

    kernel: str
    key: Key
    schema: int
    sha256: Digest
    unit: str


class _Unit(Record, frozen=True):
    """The body of an entry: the hash of a unit, and by kernel what its key says of it alone."""

    kernels: Annotated[dict[str, Key], Meta(min_length=1)]
    sha256: Digest


KEPT, BODY = Decoder(_Kept), Decoder(_Unit)


class Binaries:
    """The kernels in a folder, whose least recently used units go when there are too many bytes."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = Folder(folder, "jit")
        self.limit = limit
        self._room = 0  # bytes that may be added before files are looked over

    def find(self, kernels: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[bytes, list[str]]]:
        """Yield the units that hold some of these kernels, given by name with their keys.

        Yields a unit's bytes, which are those that were written, and the names of its kernels.
        """
        held: dict[str, list[str]] = defaultdict(list)
        for kernel, key in kernels.items():
            kept = self._read(_entry_name(kernel, key))
            if kept is not None:
                held[kept.sha256].append(kernel)
        for digest, names in held.items():
            unit = self._unit(digest)
            if unit is not None:
                self.folder.touch(_unit_name(digest))
                yield unit, names

    def keep(self, unit: bytes, kernels: Mapping[str, Mapping[str, str]]) -> bool:
        """Write a unit, and an entry for each of its kernels, given by name with their keys.

        Returns whether all of them were written.
        """
        self._room -= len(unit)
        digest = hashlib.sha256(unit).hexdigest()
        # The unit comes first: no entry names a unit that is not there yet.
        if not self.folder.write(_unit_name(digest), unit):
            return False
        written = True
        for kernel, key in kernels.items():
            entry = encode(_entry(kernel, key, digest), indent=1)
            written &= self.folder.write(_entry_name(kernel, key), entry.encode())
        if self._room < 0:
            self._room = self._evict()
        return written

    def entries(self, kernels: Mapping[str, Mapping[str, str]] | None = None) -> list[Entry]:
        """Return the units that hold these kernels, or all units, with their kernels' keys.

        An entry's body maps the kernels to what their keys say of each alone; its environment is
        the rest, which they share.
        """
        if kernels is None:
            names = self._entries()
        else:
            names = [_entry_name(kernel, key) for kernel, key in kernels.items()]
        units: dict[tuple[str, Environment], dict[str, Key]] = defaultdict(dict)
        for kept in filter(None, map(self._read, names)):
            own = {part: kept.key[part] for part in OF_THE_KERNEL if part in kept.key}
            shared = environment_of({part: kept.key[part] for part in kept.key.keys() - own.keys()})
            units[kept.sha256, shared][kept.kernel] = own
        found = []
        for digest, shared in sorted(units):
            unit = self._unit(digest)
            if unit is not None:
                held = dict(sorted(units[digest, shared].items()))
                body = encode(_Unit(held, digest))
                # Entries with one subject are equal, so there is never anything to merge.
                subject = f"unit {hashlib.sha256(body.encode()).hexdigest()[:32]}"
                found.append(Entry("jit", subject, shared, body, unit))
        return found

    def add(self, entry: Entry) -> str:
        """Keep the kernels of an entry that are not there yet; return why not, or an empty string.

        Nothing here can tell who made the machine code: that is for the caller to know.
        """
        try:
            body = decode(BODY, entry.body)
        except ValueError as error:
            return str(error)
        kernels = {k: {**dict(entry.environment), **own} for k, own in body.kernels.items()}
        if not all(kernels.values()):
            return "does not say what its kernels depend on"
        if hashlib.sha256(entry.blob).hexdigest() != body.sha256:
            return "has other machine code than it names"
        there = {kernel for _, names in self.find(kernels) for kernel in names}
        missing = {kernel: key for kernel, key in kernels.items() if kernel not in there}
        if missing and not self.keep(entry.blob, missing):
            return "could not be written"
        return ""

    def verify(self) -> list[tuple[str, str]]:
        """Return what is damaged: names of kernels or files, each with what is wrong."""
        damaged = []
        whole: dict[str, bool] = {}
        for name in self._entries():
            kept = self._read(name)
            if kept is None:
                damaged.append((name, "is damaged, or can be changed by other users"))
                continue
            if kept.sha256 not in whole:
                whole[kept.sha256] = self._unit(kept.sha256) is not None
            if not whole[kept.sha256]:
                unit = _unit_name(kept.sha256)
                why = f"has its machine code in {unit}, which is missing, damaged or not only ours"
                damaged.append((kept.kernel, why))
        return sorted(damaged)

    def clear(self) -> None:
        """Remove all kernels."""
        for name in self.folder.files():
            if name.endswith((".json", ".so", ".tmp")):
                self.folder.remove(name)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(status.st_size for status in self.folder.files().values())

    def _evict(self) -> int:
        """Remove what was not used for longest if there is too much; return the room there is."""
        files = self.folder.files()
        # Whatever is no entry: units, and the temporary files of processes that were killed.
        units = [name for name in files if not name.endswith(".json")]
        size = sum(files[name].st_size for name in units)
        if size <= self.limit:
            return self.limit - size
        units.sort(key=lambda name: (files[name].st_mtime_ns, name))
        for name in units[:-1]:
            self.folder.remove(name)
            size -= files.pop(name).st_size
            if size <= self.limit * 3 // 4:  # room, so that this happens rarely
                break
        for name in files.keys() - set(units):
            kept = self._read(name)
            if kept is None or _unit_name(kept.sha256) not in files:
                self.folder.remove(name)
        return max(self.limit - size, 0)

    def _entries(self) -> list[str]:
        return sorted(name for name in self.folder.files() if name.endswith(".json"))

    def _read(self, name: str) -> _Kept | None:
        """Return what an entry's file says, or None unless that is what was written to it."""
        try:
            kept = decode(KEPT, self.folder.read(name, MAX_ENTRY) or b"")
        except ValueError:
            return None
        whole = kept == _entry(kept.kernel, kept.key, kept.sha256)
        return kept if whole and name == _entry_name(kept.kernel, kept.key) else None

    def _unit(self, digest: str) -> bytes | None:
        """Return the bytes with this hash, or None unless they are what was written."""
        unit = self.folder.read(_unit_name(digest), LIMIT)
        whole = unit is not None and hashlib.sha256(unit).hexdigest() == digest
        return unit if whole else None


def _entry(kernel: str, key: Mapping[str, str], digest: str) -> _Kept:
    return _Kept(kernel, dict(sorted(key.items())), SCHEMA, digest, _unit_name(digest))


def _entry_name(kernel: str, key: Mapping[str, str]) -> str:
    covered = json.dumps([SCHEMA, kernel, dict(key)], sort_keys=True)
    return f"{hashlib.sha256(covered.encode()).hexdigest()}.json"


def _unit_name(digest: str) -> str:
    return f"{digest[:32]}.so"
