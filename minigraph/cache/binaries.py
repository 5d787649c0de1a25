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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from minigraph.cache.entry import Entry, environment_of
from minigraph.cache.folder import Folder

SCHEMA = 1  # of entries and units: a change makes all that is on disk unknown
LIMIT = 256 << 20  # bytes of units
MAX_ENTRY = 1 << 16  # bytes
OF_THE_KERNEL = ("support", "text")  # parts of a key; the others say where machine code holds


Environment = tuple[tuple[str, str], ...]
Key = dict[str, str]


class Kept(NamedTuple):
    """What an entry's file says: a kernel, its key, and the hash of its unit."""

    kernel: str
    key: Key
    digest: str


class Binaries:
    """The kernels in a folder, whose least recently used units go when there are too many bytes."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = Folder(folder, "jit")
        self.limit = limit
        self._verified: set[str] = set()  # hashes of units whose bytes this process has seen
        self._room = 0  # bytes that may be added before files are looked over

    def find(self, kernel: str, key: Mapping[str, str]) -> Path | None:
        """Return the unit that holds a kernel with this key, or None.

        The unit's bytes have been seen to be those that were written, in this process.
        """
        kept = self._read(_entry_name(kernel, key))
        if kept is None:
            return None
        unit = _unit_name(kept.digest)
        if kept.digest not in self._verified:
            if self._unit(kept.digest) is None:
                return None
            self.folder.touch(unit)
            self._verified.add(kept.digest)
        return self.folder.path / unit

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
            entry = json.dumps(_entry(kernel, key, digest), indent=1, sort_keys=True)
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
            units[kept.digest, shared][kept.kernel] = own
        found = []
        for digest, shared in sorted(units):
            unit = self._unit(digest)
            if unit is not None:
                held = dict(sorted(units[digest, shared].items()))
                body = json.dumps({"kernels": held, "sha256": digest})
                # Entries with one subject are equal, so there is never anything to merge.
                subject = f"unit {hashlib.sha256(body.encode()).hexdigest()[:32]}"
                found.append(Entry("jit", subject, shared, body, unit))
        return found

    def add(self, entry: Entry) -> str:
        """Keep the kernels of an entry that are not there yet; return why not, or an empty string.

        Nothing here can tell who made the machine code: that is for the caller to know.
        """
        try:
            body = json.loads(entry.body)
            kernels = {k: {**dict(entry.environment), **own} for k, own in body["kernels"].items()}
            named = body["sha256"]
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return "does not name its kernels"
        parts = [part for key in kernels.values() for part in key.values()]
        if not parts or not all(isinstance(part, str) for part in parts):
            return "does not say what its kernels depend on"
        if hashlib.sha256(entry.blob).hexdigest() != named:
            return "has other machine code than it names"
        missing = {k: key for k, key in kernels.items() if self.find(k, key) is None}
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
            if kept.digest not in whole:
                whole[kept.digest] = self._unit(kept.digest) is not None
            if not whole[kept.digest]:
                unit = _unit_name(kept.digest)
                why = f"has its machine code in {unit}, which is missing, damaged or not only ours"
                damaged.append((kept.kernel, why))
        return sorted(damaged)

    def clear(self) -> None:
        """Remove all kernels."""
        for name in self.folder.files() if self.folder.safe() else ():
            if name.endswith((".json", ".so", ".tmp")):
                self.folder.remove(name)
        self._verified.clear()

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
            size -= files[name].st_size
            if size <= self.limit * 3 // 4:  # room, so that this happens rarely
                break
        for name in files.keys() - set(units):
            kept = self._read(name)
            if kept is None or not (self.folder.path / _unit_name(kept.digest)).exists():
                self.folder.remove(name)
        return max(self.limit - size, 0)

    def _entries(self) -> list[str]:
        return sorted(name for name in self.folder.files() if name.endswith(".json"))

    def _read(self, name: str) -> Kept | None:
        """Return what an entry's file says, or None unless that is what was written to it."""
        try:
            entry = json.loads(self.folder.read(name, MAX_ENTRY) or b"")
            kept = Kept(entry["kernel"], entry["key"], entry["sha256"])
            whole = entry == _entry(*kept) and name == _entry_name(kept.kernel, kept.key)
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        return kept if whole else None

    def _unit(self, digest: str) -> bytes | None:
        """Return the bytes with this hash, or None unless they are what was written."""
        unit = self.folder.read(_unit_name(digest), LIMIT)
        whole = unit is not None and hashlib.sha256(unit).hexdigest() == digest
        return unit if whole else None


def _entry(kernel: str, key: Mapping[str, str], digest: str) -> dict[str, Any]:
    unit = _unit_name(digest)
    return {"schema": SCHEMA, "kernel": kernel, "unit": unit, "sha256": digest, "key": dict(key)}


def _entry_name(kernel: str, key: Mapping[str, str]) -> str:
    covered = json.dumps([SCHEMA, kernel, dict(key)], sort_keys=True)
    return f"{hashlib.sha256(covered.encode()).hexdigest()}.json"


def _unit_name(digest: str) -> str:
    return f"{digest[:32]}.so"
