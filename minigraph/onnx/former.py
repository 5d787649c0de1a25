"""Operators of opsets before 20 as those of later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import Node, constant

SETTLED = 20
SILENT = ("broadcast", "consumed_inputs", "is_test", "spatial")  # attributes that say nothing now
INPUTS = {  # what was an attribute, and is an input now
    "Clip": ("min", "max"),
    "Dropout": ("ratio",),
    "Pad": ("pads", "value"),
    "ReduceSum": ("axes",),
    "Slice": ("starts", "ends", "axes"),
    "Split": ("split",),
    "Squeeze": ("axes",),
    "TopK": ("k",),
    "Unsqueeze": ("axes",),
    "Upsample": ("scales",),
}


def renewed(
    name: str, inputs: Sequence[Node | None], attributes: Mapping[str, Any], opset: int
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the inputs and the attributes with which opset 20 says the same."""
    kept = {k: v for k, v in attributes.items() if k not in SILENT}
    moved = [kept.pop(k, None) for k in INPUTS.get(name, ())]
    if any(x is not None for x in moved):
        inputs = [*inputs, *(x if x is None else constant(_array(x)) for x in moved)]
    if attributes.get("broadcast") and "axis" in kept:  # that of x at which y begins
        x, y = (each for each in inputs if each is not None)
        inputs = [x, ops.reshape(y, (*y.shape, *(1,) * (x.ndim - kept.pop("axis") - y.ndim)))]
    if name == "DFT":
        kept.setdefault("axis", 1)
    if name in ("Hardmax", "LogSoftmax", "Softmax") and opset < 13 and inputs[0] is not None:
        axis = kept.setdefault("axis", 1)
        if axis not in (-1, inputs[0].ndim - 1):
            raise GraphError(f"along all axes from {axis} on, as before opset 13")
    return inputs, kept


def _array(x: Any) -> Any:
    made = np.array(x)
    return made.astype(np.float32 if made.dtype.kind == "f" else np.int64)
