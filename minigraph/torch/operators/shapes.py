"""Rows of operators that place elements anew, and compute none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigraph import ops
from minigraph.graph import Node
from minigraph.torch.operators.table import FULL, row, rows


@row("view", "reshape", "_unsafe_view", "view_copy")
def _view(x: Node, shape: Any) -> Node:
    return ops.reshape(x, tuple(shape))


@row("permute", "permute_copy")
def _permute(x: Node, axes: Any) -> Node:
    return ops.permute_dims(x, tuple(axis % x.ndim for axis in axes))


@row("transpose.int")
def _transpose(x: Node, one: int, other: int) -> Node:
    return ops.swapaxes(x, one, other) if x.ndim else x


@row("t", "numpy_T")
def _t(x: Node) -> Node:
    return ops.permute_dims(x, tuple(reversed(range(x.ndim))))


@row("expand", "expand_copy", "broadcast_to")
def _expand(x: Node, shape: Any, implicit: bool = False) -> Node:
    lead = len(shape) - x.ndim
    own = (*(1,) * lead, *x.shape)
    return ops.broadcast_to(
        x,
        tuple(m if isinstance(n, int) and n == -1 else n for n, m in zip(shape, own, strict=True)),
    )


@row("expand_as")
def _expand_as(x: Node, like: Node) -> Node:
    return ops.broadcast_to(x, like.shape)


@row("unsqueeze")
def _unsqueeze(x: Node, axis: int) -> Node:
    return ops.expand_dims(x, axis)


@row("squeeze", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Node, axes: Any = None) -> Node:
    chosen = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    ones = tuple({a % x.ndim for a in chosen if x.ndim and x.shape[a % x.ndim] == 1})
    return ops.squeeze(x, tuple(sorted(ones))) if ones else x


@row("flatten.using_ints")
def _flatten(x: Node, start: int = 0, end: int = -1) -> Node:
    return ops.flatten(x, start, end) if x.ndim else ops.reshape(x, (1,))


@row("unflatten.int")
def _unflatten(x: Node, axis: int, sizes: Any) -> Node:
    axis %= x.ndim
    return ops.reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1 :]))


@row("cat")
def _cat(xs: Sequence[Node], axis: int = 0) -> Node:
    # torch leaves out vectors of no element, whatever the rank of the others is.
    return ops.concat([x for x in xs if x.shape != (0,)] or xs, axis)


@row("stack")
def _stack(xs: Sequence[Node], axis: int = 0) -> Node:
    return ops.stack(xs, axis)


@row("split.Tensor")
def _split(x: Node, size: Any, axis: int = 0) -> list[Node]:
    length = x.shape[axis]
    return ops.split(x, [i * size for i in range(1, -(-length // size))], axis)


@row("split_with_sizes", "split.sizes")
def _split_with_sizes(x: Node, sizes: Any, axis: int = 0) -> list[Node]:
    ends = [sum(sizes[:i]) for i in range(1, len(sizes))]
    return ops.split(x, ends, axis)


@row("chunk")
def _chunk(x: Node, chunks: int, axis: int = 0) -> list[Node]:
    return _split(x, max(1, -(-x.shape[axis] // chunks)), axis)


@row("unbind.int")
def _unbind(x: Node, axis: int = 0) -> Any:
    return ops.unstack(x, axis)


@row("select.int", "select_copy.int")
def _select(x: Node, axis: int, index: Any) -> Node:
    return x[(*(slice(None),) * (axis % x.ndim), index)]


@row("slice.Tensor", "slice_copy.Tensor")
def _slice(x: Node, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Node:
    stop = None if end is None or (isinstance(end, int) and end >= FULL) else end
    return x[(*(slice(None),) * (axis % x.ndim), slice(start, stop, step))]


@row("narrow")
def _narrow(x: Node, axis: int, start: Any, length: Any) -> Node:
    return _slice(x, axis, start, start + length)


@row("slice_scatter")
def _slice_scatter(
    x: Node, source: Node, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Node:
    places = _slice(ops.broadcast_to(_positions(x, axis), x.shape), axis, start, end, step)
    return ops.scatter(x, axis, places, source)


@row("select_scatter")
def _select_scatter(x: Node, source: Node, axis: int, index: int) -> Node:
    return ops.where(_positions(x, axis) == index % x.shape[axis], ops.expand_dims(source, axis), x)


def _positions(x: Node, axis: int) -> Node:
    """Return the index along an axis, shaped so that it broadcasts against x."""
    axis %= x.ndim
    return ops.reshape(ops.arange(x.shape[axis]), (-1, *(1,) * (x.ndim - 1 - axis)))


@row("repeat")
def _repeat(x: Node, repeats: Any) -> Node:
    return ops.tile(x, tuple(repeats))


@row("repeat_interleave.self_int")
def _repeat_interleave(x: Node, repeats: int, axis: int | None = None, **unused: Any) -> Node:
    return ops.repeat(x, repeats, axis)


@row("flip")
def _flip(x: Node, axes: Any) -> Node:
    return ops.flip(x, tuple(axes)) if axes else x


@row("roll")
def _roll(x: Node, shifts: Any, axes: Any = ()) -> Node:
    return ops.roll(x, tuple(shifts), tuple(axes) or None)


@row("tril")
def _tril(x: Node, k: int = 0) -> Node:
    return ops.tril(x, k)


@row("triu")
def _triu(x: Node, k: int = 0) -> Node:
    return ops.triu(x, k)


@row("constant_pad_nd")
def _constant_pad(x: Node, padding: Any, value: Any = 0) -> Node:
    return ops.pad(x, _widths(x, padding), value)


@row("pad")
def _pad(x: Node, padding: Any, mode: str = "constant", value: Any = None) -> Node:
    return ops.pad(x, _widths(x, padding), value or 0, mode)  # type: ignore[arg-type]


rows(
    {
        f"{mode}_pad{n}d": lambda x, padding, name=name: _pad(x, padding, name)
        for mode, name in (("reflection", "reflect"), ("replication", "edge"))
        for n in (1, 2, 3)
    }
)


def _widths(x: Node, padding: Any) -> list[tuple[int, int]]:
    """Return torch's padding, of the last axis first, as one pair an axis."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]


@row("diagonal", "diagonal_copy")
def _diagonal(x: Node, offset: int = 0, one: int = 0, other: int = 1) -> Node:
    x = ops.moveaxis(x, (one, other), (-2, -1))
    *lead, h, w = x.shape
    first = offset if offset >= 0 else -offset * w
    count = max(min(h, w - offset) if offset >= 0 else min(h + offset, w), 0)
    flat = ops.reshape(x, (*lead, h * w))
    return flat[..., first : first + count * (w + 1) : w + 1][..., :count]


@row("diagonal_scatter")
def _diagonal_scatter(x: Node, source: Node, offset: int = 0, one: int = 0, other: int = 1) -> Node:
    places = ops.reshape(ops.arange(x.size), x.shape)
    places = ops.flatten(_diagonal(places, offset, one, other))
    return ops.reshape(ops.scatter(ops.flatten(x), 0, places, ops.flatten(source)), x.shape)


@row("masked_scatter")
def _masked_scatter(x: Node, mask: Node, source: Node) -> Node:
    mask = ops.broadcast_to(mask, x.shape)
    nth = ops.cumsum(ops.astype(ops.flatten(mask), "int64"), 0) - 1
    taken = ops.take(ops.flatten(source), ops.maximum(nth, 0), 0)
    return ops.where(mask, ops.reshape(taken, x.shape), x)
