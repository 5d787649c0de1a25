"""Elements that a mask selects; their number is unknown until the call.

`x[mask]` stands for all rows of x together with the mask, and `nonzero(mask)` for all indices.
Row-wise operators compute all rows; sums and means count the selected ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch.utils import _pytree as pytree

from minigraph import ops
from minigraph.errors import GraphError
from minigraph.graph import FLOATS, DType, Graph, Node
from minigraph.passes.notes import Notes
from minigraph.passes.rewrite.simplification import share_common
from minigraph.torch.operators.table import PROMOTING, ROWS, Row, row

UNKNOWN = "a mask of bool selects an unknown number of elements; use where"


class MaskedSelection:
    """The rows of a tensor that a mask selects.

    rows    all rows: unselected ones repeat the first selected one, so that they add no infinity
            or NaN
    mask    which rows are selected
    """

    def __init__(self, x: Node, mask: Node) -> None:
        self.key, self.shape = mask, mask.shape
        self.mask = ops.flatten(mask)
        rows = ops.reshape(x, (-1, *x.shape[mask.ndim :]))
        first = ops.take(rows, ops.argmax(ops.astype(self.mask, "int32")), 0)
        self.rows = ops.where(self.mask_like(rows), rows, ops.stop_gradient(first))

    def mask_like(self, rows: Node) -> Node:
        """Return the mask with the number of axes of rows."""
        return ops.reshape(self.mask, (-1, *(1,) * (rows.ndim - 1)))

    def like(self, rows: Any) -> Any:
        """Return other rows, selected by the same mask."""
        if isinstance(rows, tuple | list):
            return [*map(self.like, rows)]
        return MaskedSelection(ops.reshape(rows, (*self.shape, *rows.shape[1:])), self.key)

    def astype(self, dtype: DType) -> MaskedSelection:
        return self.like(ops.astype(self.rows, dtype))

    @property
    def dtype(self) -> DType:
        return self.rows.dtype

    @property
    def count(self) -> Node:
        return ops.sum(ops.astype(self.mask, "int64"))


@row("index.Tensor")
def _index(x: Any, indices: Sequence[Any]) -> Any:
    first = indices[0]
    if len(indices) == 1 and isinstance(first, Node) and first.dtype == np.bool_:
        return MaskedSelection(x, first)
    if isinstance(x, MaskedSelection):
        if first is not None or any(isinstance(i, MaskedSelection) for i in indices):
            raise GraphError(UNKNOWN)
        return x.like(x.rows[_rows_of(indices)])
    if any(isinstance(i, MaskedSelection) for i in indices):
        return _at(indices).like(x[_rows_of(indices)])
    return x[tuple(slice(None) if i is None else i for i in indices)]


@row("masked_select")
def _masked_select(x: Node, mask: Node) -> MaskedSelection:
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return MaskedSelection(ops.broadcast_to(x, shape), ops.broadcast_to(mask, shape))


@row("nonzero")
def _nonzero(x: Node) -> MaskedSelection:
    if not x.ndim:
        raise GraphError(UNKNOWN)
    axes = [
        ops.broadcast_to(ops.reshape(ops.arange(n), (n, *(1,) * (x.ndim - axis - 1))), x.shape)
        for axis, n in enumerate(x.shape)
    ]
    return MaskedSelection(ops.stack(axes, -1), x if x.dtype == np.bool_ else ops.not_equal(x, 0))


def _at(indices: Sequence[Any], values: Any = None) -> MaskedSelection:
    """Return the first of some indices; GraphError unless it is selected by the mask of all."""
    selection = _one_mask([*indices, values])
    others = [x for x in (*indices, values) if isinstance(x, Node)]
    if not isinstance(indices[0], MaskedSelection) or any(
        x.ndim >= selection.rows.ndim for x in others
    ):
        raise GraphError(UNKNOWN)
    return selection


def _rows_of(indices: Sequence[Any]) -> tuple[Any, ...]:
    rows = (x.rows if isinstance(x, MaskedSelection) else x for x in indices)
    return tuple(slice(None) if x is None else x for x in rows)


# ---------------------------------------------------------------- row by row

ROW_WISE = (PROMOTING - {"aten.logsumexp.default"}) | {
    f"aten.{name}"
    for name in (
        *("where.self", "leaky_relu.default", "softplus.default", "gelu.default", "clamp.default"),
        *("clamp_min.default", "clamp_max.default", "hardtanh.default", "elu.default"),
        *("clone.default", "detach.default", "alias.default", "_to_copy.default"),
        *("lift_fresh_copy.default", "native_dropout.default", "dropout.default"),
        *("one_hot.default", "full_like.default", "lgamma.default"),
    )
}
ROW_ARGUMENTS = {  # index of the argument from whose rows those of the result are computed
    "aten.linear.default": 0,
    "aten.mm.default": 0,
    "aten.addmm.default": 1,
    "aten.embedding.default": 1,
    "aten.native_layer_norm.default": 0,
    "aten.rms_norm.default": 0,
}
ALONG_AXES = {  # along the axes in the second argument: row-wise unless they include the first
    f"aten.{name}"
    for name in (
        *("_softmax.default", "_log_softmax.default", "select.int", "slice.Tensor"),
        *("gather.default", "argmax.default", "argmin.default", "max.dim", "min.dim"),
        *("logsumexp.default", "amax.default", "amin.default", "cumsum.default"),
        *("unsqueeze.default", "squeeze.dim", "squeeze.dims", "linalg_vector_norm.default"),
        *("sum.dim_IntList", "mean.dim", "unbind.int", "cat.default", "stack.default"),
    )
}


def _is_row_wise(name: str, args: Sequence[Any]) -> bool:
    """Whether an operator computes each row of its result from the same row of its arguments."""
    if name in ROW_ARGUMENTS:
        return [i for i, x in enumerate(args) if isinstance(x, MaskedSelection)] == [
            ROW_ARGUMENTS[name]
        ]
    if name not in ALONG_AXES:
        return name in ROW_WISE
    axes = args[2 if name == "aten.linalg_vector_norm.default" else 1]
    first = _one_mask(pytree.tree_leaves(args[0]))
    rank = first.rows.ndim + (name in ("aten.unsqueeze.default", "aten.stack.default"))
    return bool(axes) and all(a % rank for a in ([axes] if isinstance(axes, int) else axes))


# ---------------------------------------------------------------- across rows


def _sum(x: MaskedSelection, axes: Any = None, *arguments: Any, **keywords: Any) -> Node:
    selected = ops.where(x.mask_like(x.rows), x.rows, 0)
    return ROWS["aten.sum.dim_IntList"](selected, axes, *arguments, **keywords)


def _mean(x: MaskedSelection, axes: Any = None, *arguments: Any, **keywords: Any) -> Node:
    rank = x.rows.ndim
    reduced = {axis % rank for axis in axes or range(rank)}
    sizes = [n for axis, n in enumerate(x.rows.shape) if axis and axis in reduced]
    return _sum(x, axes, *arguments, **keywords) / (x.count * math.prod(sizes))


def _extremum(name: str, sign: int) -> Row:
    def reduce(x: MaskedSelection, *args: Any) -> Node:
        dtype = x.rows.dtype
        if dtype in FLOATS:
            neutral = sign * math.inf
        else:
            neutral = np.iinfo(dtype).max if sign > 0 else np.iinfo(dtype).min
        return ROWS[name](ops.where(x.mask_like(x.rows), x.rows, neutral), *args)

    return reduce


def _loss(name: str, index: int) -> Row:
    """Return the row of a loss whose argument at `index` is the kind of reduction."""

    def reduce(*args: Any) -> Any:
        losses = _by_rows(name, (*args[:index], 0, *args[index + 1 :]), {})
        if not args[index]:
            return losses
        return _mean(losses) if args[index] == 1 else _sum(losses)

    return reduce


def _nll_loss(
    x: MaskedSelection, labels: MaskedSelection, weight: Any, reduction: int, ignored: int
) -> Any:
    _one_mask((x, labels))
    if not reduction:
        losses, total = ROWS["aten.nll_loss_forward.default"](
            x.rows, labels.rows, weight, reduction, ignored
        )
        return [x.like(losses), total]
    counted = ops.where(x.mask, labels.rows, ignored)
    return ROWS["aten.nll_loss_forward.default"](x.rows, counted, weight, reduction, ignored)


def _index_put(x: Node, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Node:
    mask = indices[0]
    if isinstance(mask, Node) and mask.dtype == np.bool_ and len(indices) == 1 and not accumulate:
        _one_mask([values, MaskedSelection(x, mask)])
        mask = ops.reshape(mask, (*mask.shape, *(1,) * (x.ndim - mask.ndim)))
        return ops.where(mask, ops.reshape(values.rows, x.shape), x)
    first = _at(indices, values)
    outside = ops.where(first.mask_like(first.rows), first.rows, len(x))  # of what is not selected
    longer = ops.pad(x, [(0, 1), *[(0, 0)] * (x.ndim - 1)])
    arrays = [outside, *_rows_of(indices)[1:]]
    rows = values.rows if isinstance(values, MaskedSelection) else values
    return ROWS["aten.index_put.default"](longer, arrays, rows, accumulate)[:-1]


def _index_add(x: Node, axis: int, index: Any, source: Any, alpha: Any = 1) -> Node:
    if axis % x.ndim:
        raise GraphError(UNKNOWN)
    return _index_put(x, [index], _by_rows("aten.mul.Tensor", (source, alpha), {}), True)


def _index_select(x: Node, axis: int, index: MaskedSelection) -> Any:
    if axis % x.ndim:
        raise GraphError(UNKNOWN)
    return _index(x, [index])


def _expand(x: MaskedSelection, sizes: Sequence[Any], *unused: Any) -> MaskedSelection:
    if len(sizes) != x.rows.ndim:
        raise GraphError(UNKNOWN)
    return x.like(ROWS["aten.expand.default"](x.rows, [-1, *sizes[1:]]))


def _view(x: MaskedSelection, sizes: Sequence[Any], *unused: Any) -> MaskedSelection:
    inner = sizes[1:]
    if not all(isinstance(n, int) for n in inner) or math.prod(inner) != math.prod(
        x.rows.shape[1:]
    ):
        raise GraphError(UNKNOWN)
    return x.like(ops.reshape(x.rows, (len(x.rows), *inner)))


ACROSS_ROWS: dict[str, Callable[..., Any]] = {
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.max.default": _extremum("aten.max.default", -1),
    "aten.amax.default": _extremum("aten.amax.default", -1),
    "aten.min.default": _extremum("aten.min.default", 1),
    "aten.amin.default": _extremum("aten.amin.default", 1),
    "aten.nll_loss_forward.default": _nll_loss,
    "aten.smooth_l1_loss.default": _loss("aten.smooth_l1_loss.default", 2),
    "aten.huber_loss.default": _loss("aten.huber_loss.default", 2),
    "aten.binary_cross_entropy.default": _loss("aten.binary_cross_entropy.default", 3),
    "aten.index.Tensor": _index,
    "aten.index_add.default": _index_add,
    "aten.index_put.default": _index_put,
    "aten.index_select.default": _index_select,
    "aten.expand.default": _expand,
    "aten.sym_size.int": lambda x, axis: x.rows.shape[axis] if axis % x.rows.ndim else x.count,
    "aten.view.default": _view,
    "aten._unsafe_view.default": _view,
    "_operator.getitem": operator.getitem,
}


def compute(name: str, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Return the result of an operator of selections; GraphError if it needs their size."""
    if _is_row_wise(name, args):
        return _by_rows(name, args, keywords)
    if name.startswith(("aten._assert", "aten.sym_constrain")):
        return None
    if name not in ACROSS_ROWS:
        raise GraphError(UNKNOWN)
    return ACROSS_ROWS[name](*args, **keywords)


def _by_rows(name: str, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
    leaves, structure = pytree.tree_flatten((list(args), keywords))
    selection = _one_mask(leaves)
    for x in leaves:
        if name not in ROW_ARGUMENTS and isinstance(x, Node) and x.ndim >= selection.rows.ndim:
            raise GraphError(UNKNOWN)
    rows = [x.rows if isinstance(x, MaskedSelection) else x for x in leaves]
    positional, keywords = pytree.tree_unflatten(rows, structure)
    return selection.like(ROWS[name](*positional, **keywords))


def _one_mask(leaves: Sequence[Any]) -> MaskedSelection:
    """Return the first selection among arguments; GraphError if another one has another mask."""
    first, *others = (x for x in leaves if isinstance(x, MaskedSelection))
    for other in others:
        if other.key is not first.key:  # equal elements in the same order
            shared = share_common(Graph((), (first.mask, other.mask)), Notes())
            if shared.outputs[0] is not shared.outputs[1]:
                raise GraphError(UNKNOWN)
    return first
