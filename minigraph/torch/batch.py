"""Batches of a step: their tensors as inputs of a graph, and as arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch
from torch.export import Dim, ShapesCollection
from torch.utils import _pytree as pytree

import minigraph as mg
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, DType, Node
from minigraph.torch.memory import CPU, array_of, as_real, check_supported
from minigraph.torch.operators import DTYPES

Size = Any  # a name or a torch.export.Dim
CONSTANT_TYPES = (bool, int, float, str, type(None))  # arguments of torch.export besides tensors


class TensorSpec(NamedTuple):
    """The shape and dtype of an input; None for a size that differs between calls."""

    dtype: DType
    shape: tuple[int | None, ...]

    @staticmethod
    def like(tensor: torch.Tensor) -> TensorSpec:
        """Return the spec of a tensor."""
        sizes = tuple(n if isinstance(n, int) else None for n in tensor.shape)
        return TensorSpec(DTYPES[tensor.dtype], sizes)

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def call_text(leaves: Sequence[Any], structure: pytree.TreeSpec) -> str:
    """Return a call's arguments in one line: tensors and expressions by dtype and shape."""
    args, kwargs = pytree.tree_unflatten([*map(description, leaves)], structure)
    return f"({', '.join([*map(repr, args), *(f'{k}={x!r}' for k, x in kwargs.items())])})"


def description(x: Any) -> Any:
    """Return an argument's description for errors."""
    if isinstance(x, Node):
        return TensorSpec(x.dtype, x.shape)
    return TensorSpec.like(x) if isinstance(x, torch.Tensor) else x


class _Item(NamedTuple):
    """A part of a batch, a tensor or not: its description in errors, its name, and an example."""

    what: str
    name: str
    like: Any


class Batches:
    """The structure of batches, from an example.

    what     first words of errors
    model    whose `forward` names all items except the last one, the target
    device   of the model; tensors of a batch may also be on the CPU
    batch    the example: tensors, or pytrees of tensors
    named    the example's keyword arguments of the model, likewise
    dynamic  sizes that differ between calls, as for `training_step`
    """

    def __init__(
        self,
        what: str,
        model: torch.nn.Module,
        device: torch.device,
        batch: Sequence[Any],
        named: Mapping[str, Any],
        dynamic: Any,
    ) -> None:
        if not isinstance(batch, list | tuple) or len(batch) < (1 if named else 2):
            count = len(batch) if isinstance(batch, list | tuple) else type(batch).__name__
            raise GraphError(f"{what}: a batch is a tuple of the inputs and a target, got {count}")
        self._device = device
        names = _input_names(model, len(batch))
        leaves, self._structure = pytree.tree_flatten_with_path((tuple(batch), dict(named)))
        self._items = [_item(path, names, x) for path, x in leaves]
        self._is_flat = not named and len(leaves) == len(batch)
        self._sizes: list[Mapping[int, Size]] | None = None
        self.arrays(batch, named)
        self._sizes = _sizes(what, dynamic, self._tensors)
        self.example = pytree.tree_map_only(
            torch.Tensor, lambda x: x.to(device), (tuple(batch), dict(named))
        )

    @property
    def _tensors(self) -> list[_Item]:
        return [item for item in self._items if isinstance(item.like, torch.Tensor)]

    def dynamic_shapes(self, module: torch.nn.Module) -> Any:
        """Return the `dynamic_shapes` of `torch.export` for the example's (items, keywords)."""
        if self._sizes is None:
            return None
        sizes = ShapesCollection()
        leaves = pytree.tree_leaves(self.example)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        for x, axes in zip(tensors, self._sizes, strict=True):
            # Of a named size the model tells the range, such as the length of a table.
            sizes[x] = {i: Dim.DYNAMIC if isinstance(n, str) else n for i, n in axes.items()}
        return sizes.dynamic_shapes(module, self.example)

    def inputs(self) -> list[Node]:
        """Return inputs of a graph; those for complex tensors hold pairs."""
        nodes = []
        for i, item in enumerate(self._tensors):
            pairs = as_real(item.like)
            shape: list[Any] = list(pairs.shape)
            for axis, size in (self._sizes[i] if self._sizes is not None else {}).items():
                shape[axis] = size if isinstance(size, str) else size.__name__
            nodes.append(mg.input(item.name, tuple(shape), DTYPES[pairs.dtype].name))
        return nodes

    def arrays(self, batch: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
        """Return a batch as arrays in the memory of its tensors."""
        leaves = self._leaves(batch, named)
        arrays = []
        for item, x in zip(self._items, leaves, strict=True):
            like = item.like
            if isinstance(like, CONSTANT_TYPES):
                if type(x) is not type(like) or x != like:
                    raise GraphError(
                        f"{item.what} was {like!r} when the step was made, a constant of it, and "
                        f"is {description(x)!r} now; pass a tensor for a value that changes"
                    )
                continue
            is_dense = isinstance(x, torch.Tensor) and x.layout is torch.strided
            has_type = is_dense and x.dtype is like.dtype and not x.requires_grad
            has_size = has_type and (self._sizes is not None or x.shape == like.shape)
            if not (has_size and (x.is_cpu or x.device == self._device)):
                self._refuse(item, x)
            arrays.append(array_of(as_real(x)))
        return arrays

    def _leaves(self, batch: Sequence[Any], named: Mapping[str, Any]) -> Sequence[Any]:
        """Return the parts of a batch, in the order of the example's."""
        if self._is_flat and not named and len(batch) == len(self._items):
            return batch
        try:
            leaves: list[Any] = self._structure.flatten_up_to((tuple(batch), named))
        except ValueError:
            names = [item.name for item in self._tensors]
            raise GraphError(
                f"the step takes a batch of {len(names)} tensors ({', '.join(names)}), got "
                f"{call_text(*pytree.tree_flatten((tuple(batch), named)))}"
            ) from None
        return leaves

    def _refuse(self, item: _Item, x: Any) -> None:
        what, like = item.what, item.like
        if not isinstance(x, torch.Tensor):
            hint = "; torch.export.register_dataclass tells its fields" * is_dataclass(x)
            raise GraphError(f"{what} is a tensor, not {type(x).__name__}{hint}")
        check_supported(x, what, CPU if x.is_cpu else self._device)
        if x.requires_grad:
            raise GraphError(f"{what} requires a gradient, but gets none; pass its .detach()")
        if x.dtype is not like.dtype:
            raise DTypeError(f"{what} was of {like.dtype} when the step was made, got {x.dtype}")
        if self._sizes is None and x.shape != like.shape:
            raise ShapeError(
                f"{what} had shape {tuple(like.shape)} when the step was made, got "
                f"{tuple(x.shape)}; make it with dynamic=True for batches of any size"
            )


def _input_names(model: torch.nn.Module, count: int) -> list[str]:
    """Return names for the items of a batch: those of the arguments of the model's `forward`."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # of functions that are not written in Python
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind in positional][: count - 1]
    names += [f"x{i}" for i in range(len(names), count - 1)]
    return [*names, "targets" if "target" in names else "target"]


def _item(path: Sequence[Any], names: Sequence[str], like: Any) -> _Item:
    """Return the value at a path in (items, keyword arguments)."""
    (by_keyword, key), suffix = path[:2], pytree.keystr(path[2:])
    if by_keyword.idx:
        return _Item(f"{key.key}{suffix}", f"{key.key}{suffix}", like)
    name = names[key.idx]
    return _Item(f"batch[{key.idx}]{suffix} ({name})", f"{name}{suffix}", like)


def _sizes(what: str, dynamic: Any, tensors: Sequence[_Item]) -> list[Mapping[int, Size]] | None:
    """Return which sizes differ between calls, for each tensor of a batch, by axis."""
    if dynamic is False:
        return None
    axes = [{0: "batch"} if x.like.ndim else {} for x in tensors] if dynamic is True else dynamic
    has_all = isinstance(axes, list | tuple) and len(axes) == len(tensors)
    if not has_all or not all(map(_names_sizes, axes)):
        raise GraphError(
            f"{what}: dynamic is a bool, or for each of the {len(tensors)} tensors of a batch a "
            'dict of axes and names or torch.export.Dims, such as {0: "batch"}'
        )
    for x, sizes in zip(tensors, axes, strict=True):
        for axis in sizes or {}:
            if axis not in range(x.like.ndim) or x.like.shape[axis] < 2:
                raise GraphError(
                    f"{what}: {x.what} of shape {tuple(x.like.shape)} has no size of 2 or more "
                    f"along axis {axis}, as dynamic needs in the example"
                )
    return [each or {} for each in axes]


def _names_sizes(axes: Any) -> bool:
    """Return whether an argument is None, or a dict of identifiers or `torch.export.Dim`s."""
    if not isinstance(axes, Mapping):
        return axes is None
    each = axes.values()
    return all(x.isidentifier() if isinstance(x, str) else hasattr(x, "__name__") for x in each)
