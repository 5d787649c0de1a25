"""The processor of this machine, on which machine code and measurements depend."""

from __future__ import annotations

import functools
import hashlib
import platform
from pathlib import Path


def model() -> str:
    return _fields().get("model name", "this processor")


def processor() -> str:
    """Return the processor's model and a digest of its instruction sets."""
    fields = _fields()
    if not fields:
        return f"{platform.machine()} {platform.processor()}".strip()
    short = hashlib.sha256(" ".join(sorted(features())).encode()).hexdigest()[:8]
    return f"{platform.machine()} {fields.get('model name', 'unknown')} features {short}"


def features() -> frozenset[str]:
    """Return Linux's names of the processor's instruction sets, such as "avx2"."""
    fields = _fields()
    return frozenset(fields.get("flags", fields.get("Features", "")).split())


@functools.cache
def _fields() -> dict[str, str]:
    """Return Linux's description of the processor, by name; {} on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
