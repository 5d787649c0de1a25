"""A kernel's text with what it is known by, in C and in CUDA alike."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelSource:
    """A kernel's text, in which its name is written NAME, and the functions that it calls."""

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
        """What its machine code depends on besides the compiler, by name."""
        return {"support": digest(*self.support), "text": digest(self.text)}


def digest(*texts: str) -> str:
    """Return 64 hexadecimal digits for texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
