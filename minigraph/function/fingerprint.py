"""The identity of a compiled function: what it computes, with which settings, on what machine.

Two functions with one fingerprint may share what was measured and generated for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.cache.machine import processor
from minigraph.graph import Constant, Graph
from minigraph.version import __version__

# Options that change neither kernels nor what is measured.
IRRELEVANT = ("autotune", "bulk", "seed")


def fields(
    graph: Graph, device: str, options: Mapping[str, Any], libraries: Mapping[str, str]
) -> dict[str, str]:
    """Return what the fingerprint covers, in words, and as its last field the fingerprint."""
    values = hashlib.sha256()
    for node in graph:
        if isinstance(node.op, Constant):
            values.update(f"{node.spec}".encode() + node.op.value.tobytes())
    relevant = [
        f"{name}={value}"
        for name, value in options.items()
        if name.partition(".")[0] not in IRRELEVANT
    ]
    covered = {
        "minigraph": __version__,
        "numpy": np.__version__,
        **libraries,
        "device": f"{device} {processor()}" if device != "reference" else device,
        "options": ", ".join(relevant),
        "graph": hashlib.sha256(str(graph).encode()).hexdigest(),
        "constants": values.hexdigest(),
    }
    return {**covered, "fingerprint": _digest(covered)}


def _digest(covered: Mapping[str, str]) -> str:
    """Return the fingerprint, 40 hexadecimal digits."""
    text = "\n".join(f"{name}: {value}" for name, value in covered.items())
    return hashlib.sha256(text.encode()).hexdigest()[:40]
