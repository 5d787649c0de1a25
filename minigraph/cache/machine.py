"""The processor of this machine, as what was compiled and measured depends on it."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's model and a digest of the features that code may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".strip()
    found = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    features = " ".join(sorted(found.get("flags", found.get("Features", "")).split()))
    short = hashlib.sha256(features.encode()).hexdigest()[:8]
    return f"{platform.machine()} {found.get('model name', 'unknown')} features {short}"
