"""An entry of a cache: one result, its subject, and the environment in which it holds."""

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
    subject      describes the problem or the unit, in words that are equal in every process
    environment  the fields in which the result holds: versions, processor, …, with their names
    body         the result, as JSON text
    blob         the machine code of kernels
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

    @property
    def checksum(self) -> str:
        """64 hexadecimal digits that cover the whole entry."""
        return _digest(self.key, self.body, hashlib.sha256(self.blob).hexdigest())


def environment_of(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the fields of an environment as entries hold them: sorted by name."""
    return tuple(sorted(fields.items()))


def _digest(*texts: str) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
