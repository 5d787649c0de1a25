"""Transposing copies, paddings and concatenations, in C."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minigraph.devices.cpu.indexing import CACHE_LINE, bits_type
from minigraph.devices.cpu.kernel import KernelCall, NativeKernel, Operands, cache_bytes
from minigraph.devices.parts import placements, reordered_view
from minigraph.graph import Copy, Node, Shape
from minigraph.jit.kernel import MAX_RANK
from minigraph.jit.macros import with_macros
from minigraph.jit.source import KernelSource
from minigraph.ops.joining import Concat
from minigraph.ops.layout import Reorder
from minigraph.ops.shape import Reshape
from minigraph.ops.slicing import Pad

TEXT = Path(__file__).with_name("move.c").read_text()
MAX_TILE_SIDE = 16  # largest number of elements of a tile's side
PART_BYTES = 4 << 10  # bytes of the output that are assembled from the inputs at once
MIN_WIDTH = 4  # elements of a tile's row, or of an innermost axis that is a loop
MAX_VECTOR_STRIDE = 4  # largest stride, in elements, of loads that compilers vectorise


class CopyAxis(NamedTuple):
    """An axis of a copy: its length; its strides, and the output's borders, in bytes."""

    length: int
    source: int
    target: int
    before: int = 0
    after: int = 0


class InputCopy(NamedTuple):
    """The copy of an input.

    parts        number of parts into which each axis may be divided
    input_index  index of the input
    offset       offset of the copy in the output, in bytes
    """

    text: str
    axes: Sequence[CopyAxis]
    parts: Sequence[int]
    input_index: int
    offset: int


def move(node: Node, strides: Sequence[Shape], threads: int) -> NativeKernel | None:
    """Return the kernel of a node that only moves elements; None for other nodes."""
    op, fill = node.op, 0
    shapes, places = [x.shape for x in node.inputs], [(x.spec.strides, 0) for x in node.inputs]
    borders: Sequence[tuple[int, int]] = ()
    match op:
        case Copy() | Reshape():
            pass
        case Reorder():
            view = reordered_view(node, strides[0])
            if view is None:
                return None
            _, spec, view_strides = view
            shapes, strides, places = [spec.shape], [view_strides], [(spec.strides, 0)]
        case Concat():
            places = placements(node)
        case Pad() if not any(op.interior):
            fill = int.from_bytes(np.array(op.value).astype(node.dtype).tobytes(), "little")
            steps = node.spec.strides
            sides = zip(op.low, op.high, steps, strict=True)
            borders, places = [(low * s, high * s) for low, high, s in sides], [(steps, 0)]
        case _:
            return None
    axes_of_inputs = []
    for shape, source, (target, _) in zip(shapes, strides, places, strict=True):
        borders_of_axes = borders or [(0, 0)] * len(shape)
        rows = zip(shape, source, target, *zip(*borders_of_axes, strict=True), strict=True)
        axes_of_inputs.append([*_collapsed(CopyAxis(*row) for row in rows)])
        if len(axes_of_inputs[-1]) >= MAX_RANK:
            return None
    short_rows = all(not axes or axes[-1].length < MIN_WIDTH for axes in axes_of_inputs)
    copies = [
        _input_copy(node, axes, isinstance(op, Pad), fill, short_rows, i, places[i][1])
        for i, (axes, shape) in enumerate(zip(axes_of_inputs, shapes, strict=True))
        if 0 not in shape
    ]
    same_strides = isinstance(op, Copy) and tuple(strides[0]) == node.spec.strides
    calls = _calls(node, copies, threads)
    return NativeKernel(
        node, calls, strided=[True] * len(shapes), inplace=[(0,)] if same_strides else ()
    )


def _collapsed(axes: Iterator[CopyAxis]) -> Iterator[CopyAxis]:
    """Yield axes without those of length 1; merge neighbours that are contiguous in both arrays."""
    outer: CopyAxis | None = None
    for axis in axes:
        n, source, target, *around = axis
        if n == 1 and not any(around):
            continue
        if outer and (outer.source, outer.target) == (source * n, target * n):
            axis = outer._replace(length=outer.length * n, source=source, target=target)
        elif outer:
            yield outer
        outer = axis
    if outer:
        yield outer


def _input_copy(
    node: Node,
    axes: list[CopyAxis],
    padded: bool,
    fill: int,
    short_rows: bool,
    input_index: int,
    offset: int,
) -> InputCopy:
    """Return the copy of an input along these axes.

    short_rows  whether the last axis of each input is short
    """
    size = node.dtype.itemsize
    rows, columns = (
        [a for a, axis in enumerate(axes) if axis[k] == size and not padded] for k in (2, 1)
    )
    tile: dict[str, Any] = {}
    if rows and columns and rows != columns:
        tile_axes = [axes[rows[-1]], axes[columns[-1]]]
        side = min(MAX_TILE_SIDE, CACHE_LINE // size)
        height, width = (min(1 << axis.length.bit_length() - 1, side) for axis in tile_axes)
        if width >= MIN_WIDTH:
            tile = {"TILE_ROWS": height, "TILE_COLUMNS": width}
            tile["INTERLEAVE_LOW"] = _interleaved(range(width // 2), width)
            tile["INTERLEAVE_HIGH"] = _interleaved(range(width // 2, width), width)
            axes = [axis for axis in axes if axis not in tile_axes] + tile_axes
    if short_rows and not tile and not padded:  # the innermost loop should not be short
        longest = max(axes, key=lambda axis: axis.length, default=CopyAxis(1, size, size))
        if not axes or axes[-1].length < MIN_WIDTH < longest.length:
            axes = [axis for axis in axes if axis != longest] + [longest]
    axes = [CopyAxis(1, 0, 0)] * (1 + bool(tile) - len(axes) + 1) + axes
    names = ("STRIDE_IN", "STRIDE_OUT")
    strides = {name: step // size for name, step in zip(names, axes[-1][1:3], strict=True)}
    text = with_macros(
        TEXT,
        T=bits_type(node.dtype),
        BORDERS=int(padded),
        VALUE=hex(fill),
        TILED=int(bool(tile)),
        **{name: n if abs(n) <= MAX_VECTOR_STRIDE else name.lower() for name, n in strides.items()},
        **tile,
    )
    # A part of an axis has at least a tile, and only the outermost axis with borders is divided.
    parts = [axis.length for axis in axes]
    parts[-2:] = [parts[-2] // tile.get("TILE_ROWS", 1), parts[-1] // tile.get("TILE_COLUMNS", 1)]
    bordered = next((a for a, axis in enumerate(axes) if axis.before + axis.after), len(axes))
    return InputCopy(text, axes, parts[: bordered + 1], input_index, offset)


def _calls(node: Node, copies: Sequence[InputCopy], threads: int) -> list[KernelCall]:
    """Return a call for each copy, or one call that moves parts of all copies in turn."""
    parts = max(threads, node.spec.nbytes // PART_BYTES)
    same_text = len({copy.text for copy in copies}) == 1 < len(copies)
    if same_text and all(copy.parts[0] >= parts for copy in copies):
        return [_call(node, copies, threads, parts, 0)]
    calls = []
    for copy in copies:
        parts_of_axes = [min(n, threads) for n in copy.parts]
        count = max(parts_of_axes)
        calls.append(_call(node, [copy], count, count, parts_of_axes.index(count)))
    return calls


def _call(
    node: Node, copies: Sequence[InputCopy], threads: int, parts: int, divided_axis: int
) -> KernelCall:
    stream = int(node.spec.nbytes > cache_bytes() // 2)

    def block(operands: Operands) -> list[int]:
        values = [threads, parts, len(copies), stream, divided_axis]
        slot, begin = operands.outputs[0]
        for copy in copies:
            values += [len(copy.axes), *itertools.chain(*copy.axes)]
            values += [*operands.inputs[copy.input_index], slot, begin + copy.offset]
        return values

    return KernelCall(KernelSource(copies[0].text), block)


def _interleaved(indices: Sequence[int], width: int) -> str:
    return ", ".join(f"{k}, {width + k}" for k in indices)
