"""The processor of this machine, on which machine code and measurements depend."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's model and a digest of its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".strip()
    fields = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    features = " ".join(sorted(fields.get("flags", fields.get("Features", "")).split()))
    short = hashlib.sha256(features.encode()).hexdigest()[:8]
    return f"{platform.machine()} {fields.get('model name', 'unknown')} features {short}"
