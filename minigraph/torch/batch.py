"""Batches of a step: how their tensors become inputs of a graph, and arrays."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

import minigraph as mg
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Array, Node
from minigraph.torch.memory import CPU, array_of, check_supported
from minigraph.torch.operators import DTYPES

Size = Any  # what torch.export.Dim makes


class Batches:
    """What all batches have in common with an example.

    what     how errors begin
    model    the arguments of its `forward` give all tensors but the last, the target, their names
    device   of the model; tensors of a batch may be on the CPU, too
    dynamic  which sizes differ, as `training_step` takes it
    """

    def __init__(
        self,
        what: str,
        model: torch.nn.Module,
        device: torch.device,
        example: Sequence[torch.Tensor],
        dynamic: Any,
    ) -> None:
        if not isinstance(example, list | tuple) or len(example) < 2:
            found = len(example) if isinstance(example, list | tuple) else type(example).__name__
            raise GraphError(f"{what}: a batch is a tuple of the inputs and a target, got {found}")
        self._device = device
        self.names = _input_names(model, len(example))
        self._specs = [(getattr(x, "shape", ()), getattr(x, "dtype", None)) for x in example]
        self._sizes: list[Mapping[int, Size]] | None = None
        self.arrays(example)
        self.example = tuple(x.to(device) for x in example)
        self._sizes = _sizes(what, dynamic, example)

    @property
    def dynamic_shapes(self) -> Any:
        """What `torch.export` takes for a `forward(*batch)`."""
        return None if self._sizes is None else {"batch": tuple(self._sizes)}

    def inputs(self) -> list[Node]:
        """Return inputs of a graph."""
        made = []
        for i, x in enumerate(self.example):
            shape: list[Any] = list(x.shape)
            for axis, size in (self._sizes[i] if self._sizes is not None else {}).items():
                shape[axis] = size.__name__
            made.append(mg.input(self.names[i], tuple(shape), DTYPES[x.dtype].name))
        return made

    def arrays(self, batch: Sequence[torch.Tensor]) -> list[Array]:
        """Return a batch as arrays in the memory of its tensors."""
        if len(batch) != len(self._specs):
            raise GraphError(
                f"the step takes a batch of {len(self._specs)} tensors "
                f"({', '.join(self.names)}), got {len(batch)}"
            )
        for i, (x, (shape, dtype)) in enumerate(zip(batch, self._specs, strict=True)):
            plain = isinstance(x, torch.Tensor) and x.layout is torch.strided
            fits = plain and x.dtype is dtype and not x.requires_grad
            sized = fits and (self._sizes is not None or x.shape == shape)
            if not (sized and (x.is_cpu or x.device == self._device)):
                self._refuse(i, x)
        return [array_of(x) for x in batch]

    def _refuse(self, i: int, x: Any) -> None:
        what, (shape, dtype) = f"batch[{i}] ({self.names[i]})", self._specs[i]
        if not isinstance(x, torch.Tensor):
            raise GraphError(f"{what} is a tensor, not {type(x).__name__}")
        check_supported(x, what, CPU if x.is_cpu else self._device)
        if x.requires_grad:
            raise GraphError(f"{what} requires a gradient, and gets none; give its .detach()")
        if x.dtype is not dtype:
            raise DTypeError(f"{what} was of {dtype} when the step was made, got {x.dtype}")
        if self._sizes is None and x.shape != shape:
            raise ShapeError(
                f"{what} had shape {tuple(shape)} when the step was made, got {tuple(x.shape)}; "
                "make it with dynamic=True for batches of any size"
            )


def _input_names(model: torch.nn.Module, count: int) -> list[str]:
    """Return names for the items of a batch: those of the arguments of the model's `forward`."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):  # of code that is not Python's
        parameters = {}.values()
    names = [p.name for p in parameters if p.kind in positional][: count - 1]
    names += [f"x{i}" for i in range(len(names), count - 1)]
    return [*names, "targets" if "target" in names else "target"]


def _sizes(
    what: str, dynamic: Any, batch: Sequence[torch.Tensor]
) -> list[Mapping[int, Size]] | None:
    """Return which sizes differ between calls, for each item of a batch, by axis."""
    if dynamic is False:
        return None
    axes = [{0: "batch"} if x.ndim else {} for x in batch] if dynamic is True else dynamic
    if not isinstance(axes, list | tuple) or len(axes) != len(batch):
        raise GraphError(
            f"{what}: dynamic is a bool, or for each of the {len(batch)} tensors of a batch a dict "
            'of axes and names or torch.export.Dims, such as {0: "batch"}'
        )
    for i, (x, sizes) in enumerate(zip(batch, axes, strict=True)):
        for axis in sizes or {}:
            if axis not in range(x.ndim) or x.shape[axis] < 2:
                raise GraphError(
                    f"{what}: batch[{i}] of shape {tuple(x.shape)} has no size of 2 or more along "
                    f"axis {axis}, which dynamic takes of an example"
                )
    named: dict[str, Size] = {}

    def dim(size: Size) -> Size:
        return named.setdefault(size, torch.export.Dim(size)) if isinstance(size, str) else size

    return [{axis: dim(size) for axis, size in (each or {}).items()} for each in axes]
