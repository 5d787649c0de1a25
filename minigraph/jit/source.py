"""Source texts of kernels, in C and in CUDA, and their digests."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """The text of a kernel, with NAME for its name, and the functions that it calls."""

    text: str
    support: tuple[str, ...] = ()

    @functools.cached_property
    def name(self) -> str:
        return f"mg_{digest(*self.support, self.text)[:16]}"

    @property
    def kernel(self) -> str:
        return self.text.replace("NAME", self.name)

    @property
    def digests(self) -> dict[str, str]:
        """Digests of the texts that the machine code depends on, by name."""
        return {"support": digest(*self.support), "text": digest(self.text)}


def digest(*texts: str) -> str:
    """Return the SHA-256 digest of texts, in hexadecimal."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
