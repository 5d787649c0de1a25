"""How operands of convolutions and products lie in memory, in the words of their measurements."""

from __future__ import annotations

from minigraph.graph import Shape, Spec

FEW_CHANNELS = 4  # as the first convolution of a network reads
WEIGHTS, BIAS, MATRIX, TRANSPOSED = "oihw", "vector", "rows", "columns"


def strides_in(layout: str, spec: Spec) -> Shape:
    """Return the strides, in bytes, of an operand without gaps in a layout of `order`."""
    if layout != TRANSPOSED:
        return spec.strides
    *outer, m, n = spec.shape
    *steps, row, column = Spec((*outer, n, m), spec.dtype).strides
    return (*steps, column, row)


def order(shape: Shape, strides: Shape, itemsize: int) -> str:
    """Return which axis of matrices, or of batches of them, is innermost in memory without gaps.

    MATRIX, TRANSPOSED, or an empty string if neither is; of a vector BIAS, or an empty string.
    """
    if len(shape) < 2:
        return BIAS if not shape or shape[0] == 1 or strides[0] == itemsize else ""
    *outer, m, n = range(len(shape))
    for name, axes in ((MATRIX, (*outer, m, n)), (TRANSPOSED, (*outer, n, m))):
        step, dense = itemsize, True
        for axis in reversed(axes):
            dense &= shape[axis] == 1 or strides[axis] == step
            step *= shape[axis]
        if dense:
            return name
    return ""
