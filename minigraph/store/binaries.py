"""Kernel binaries on disk: units of machine code, and for each kernel an entry that names its unit.

A unit is a shared object with some kernels; its file is named by a hash of its bytes.  An entry is
a JSON file named by a hash of all that the kernel's machine code depends on:

    {"kernel": "mg_4c1f…", "key": {"compiler": "/usr/bin/cc", "processor": "x86_64 …", …},
     "schema": 1, "sha256": "93ab…", "unit": "93ab….so"}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minigraph.store.folder import Folder

SCHEMA = 1  # of entries and units: a change makes all that is on disk unknown
LIMIT = 256 << 20  # bytes of units
MAX_ENTRY = 1 << 16  # bytes


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
        text = self.folder.read(_entry_name(kernel, key), MAX_ENTRY)
        try:
            entry = json.loads(text or b"")
            digest = entry["sha256"]
            if entry != _entry(kernel, key, digest):
                return None
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        unit = _unit_name(digest)
        if digest not in self._verified:
            binary = self.folder.read(unit, LIMIT)
            if binary is None or hashlib.sha256(binary).hexdigest() != digest:
                return None
            self.folder.touch(unit)
            self._verified.add(digest)
        return self.folder.path / unit

    def keep(self, unit: bytes, kernels: Mapping[str, Mapping[str, str]]) -> None:
        """Write a unit, and an entry for each of its kernels, given by name with their keys."""
        self._room -= len(unit)
        digest = hashlib.sha256(unit).hexdigest()
        # The unit comes first: no entry names a unit that is not there yet.
        if not self.folder.write(_unit_name(digest), unit):
            return
        for kernel, key in kernels.items():
            entry = json.dumps(_entry(kernel, key, digest), indent=1, sort_keys=True)
            self.folder.write(_entry_name(kernel, key), entry.encode())
        if self._room < 0:
            self._room = self._evict()

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
            unit = self._unit_of(name)
            if unit is None or not (self.folder.path / unit).exists():
                self.folder.remove(name)
        return max(self.limit - size, 0)

    def _unit_of(self, entry: str) -> str | None:
        try:
            return _unit_name(json.loads(self.folder.read(entry, MAX_ENTRY) or b"")["sha256"])
        except (ValueError, TypeError, LookupError, RecursionError):
            return None


def _entry(kernel: str, key: Mapping[str, str], digest: str) -> dict[str, Any]:
    unit = _unit_name(digest)
    return {"schema": SCHEMA, "kernel": kernel, "unit": unit, "sha256": digest, "key": dict(key)}


def _entry_name(kernel: str, key: Mapping[str, str]) -> str:
    covered = json.dumps([SCHEMA, kernel, dict(key)], sort_keys=True)
    return f"{hashlib.sha256(covered.encode()).hexdigest()}.json"


def _unit_name(digest: str) -> str:
    return f"{digest[:32]}.so"
