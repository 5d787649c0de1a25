"""An entry of a cache: one result, its subject, and the environment in which it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

MEASUREMENTS = ("onednn", "cudnn")  # of the libraries' algorithms
KINDS = (*MEASUREMENTS, "jit")  # and kernels


@dataclass(frozen=True)
class Entry:
    """One result.

    kind         one of KINDS
    subject      the problem that was measured, in words, or the kernel's name
    environment  the fields in which the result holds: versions, processor, …, with their names
    body         the result, as JSON text
    blob         the machine code that has the kernel; kernels that were compiled together share it
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


def digest_of(blob: bytes) -> str:
    """Return 64 hexadecimal digits for a blob, and "" for an empty one."""
    return hashlib.sha256(blob).hexdigest() if blob else ""


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
