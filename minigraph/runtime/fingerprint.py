"""The identity of a compiled function: what it computes, with which settings, on what machine.

Functions with the same fingerprint may share measurements and generated kernels.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from minigraph.cache.machine import processor
from minigraph.graph import Constant, Graph, nested
from minigraph.options import fingerprint_text
from minigraph.version import __version__


def environment(
    graph: Graph, device: str, options: Mapping[str, Any], libraries: Mapping[str, str]
) -> dict[str, str]:
    """Return what the fingerprint covers, in words, and the fingerprint as the last field."""
    constants = hashlib.sha256()
    graphs = list(nested(graph))
    for node in itertools.chain.from_iterable(graphs):
        if isinstance(node.op, Constant):
            constants.update(f"{node.spec}".encode() + node.op.value.tobytes())
    fields = {
        "minigraph": __version__,
        "numpy": np.__version__,
        **libraries,
        "device": f"{device} {processor()}" if device != "reference" else device,
        "options": fingerprint_text(options),
        "graph": hashlib.sha256("\n".join(map(str, graphs)).encode()).hexdigest(),
        "constants": constants.hexdigest(),
    }
    text = "\n".join(f"{name}: {value}" for name, value in fields.items())
    return {**fields, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:40]}
