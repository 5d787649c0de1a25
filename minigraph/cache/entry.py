"""What is kept: one result, what it is about, and where it holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

KINDS = ("onednn", "cudnn", "jit")  # measurements of the libraries' algorithms, and kernel binaries


@dataclass(frozen=True)
class Entry:
    """One result.

    kind         one of KINDS
    subject      what it is about, in words that are the same in every process
    environment  where it holds: versions, processor, ..., by name
    body         the result, as JSON text
    blob         bytes that belong to it: machine code
    """

    kind: str
    subject: str
    environment: tuple[tuple[str, str], ...]
    body: str
    blob: bytes = b""

    @property
    def key(self) -> str:
        """64 hexadecimal digits, equal for results that are about the same in the same place."""
        return _digest(self.kind, self.subject, *map(" = ".join, self.environment))

    @property
    def checksum(self) -> str:
        """64 hexadecimal digits that cover all of the entry."""
        return _digest(self.key, self.body, hashlib.sha256(self.blob).hexdigest())


def environment(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return fields as an entry has them: in the order of their names."""
    return tuple(sorted(fields.items()))


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
