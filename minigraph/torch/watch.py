"""The assumptions of a compiled step about a module, which are checked before each call."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from minigraph.errors import GraphError

_training = itemgetter("training")
_requires_grad = attrgetter("requires_grad")
Buffers = list[tuple[torch.Tensor, torch.Tensor]]  # replaced ones, each with its replacement


class Watch:
    """The recorded parts of a module and its submodules, and their present modes.

    prefix  of the paths of modules, which errors omit
    """

    def __init__(self, root: torch.nn.Module, prefix: str) -> None:
        self._root, self._prefix = root, prefix
        self._modes = [*map(vars, root.modules())]
        self._parameters = [*root.parameters()]
        parts = [*root.modules()]
        self._forward_hooks = [h for x in parts for h in (x._forward_hooks, x._forward_pre_hooks)]
        self._tables = [table for _, table in self._named_tables() if table]
        self._hooks = self._count_hooks()
        self.accept()

    def _named_tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for path, module in self._root.named_modules():
            path = path.removeprefix(self._prefix).removeprefix(".")
            for table in (module._parameters, module._buffers, module._modules):
                yield path, table

    def _count_hooks(self) -> int:
        """Return how many hooks were ever made; GraphError for hooks that a step cannot call."""
        count: int = RemovableHandle.next_id
        hooks = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
        for path, part in (*self._root.named_modules(), *self._root.named_parameters()):
            if any(getattr(part, name, None) for name in hooks):
                path = path.removeprefix(self._prefix).removeprefix(".") or type(part).__name__
                is_module = isinstance(part, torch.nn.Module)
                kind = "backward hooks" if is_module else "a hook on its gradient"
                raise GraphError(f"{path} has {kind}, which the step cannot call")
        return count

    def accept(self) -> None:
        """Record the present parts."""
        self._parts = [*chain.from_iterable(map(dict.values, self._tables))]

    def modes(self) -> tuple[int, ...]:
        """Return the training modes, which parameters require a gradient, and the forward hooks."""
        modes = map(_training, self._modes)
        hooks = chain.from_iterable(self._forward_hooks)
        return (*modes, *map(_requires_grad, self._parameters), *hooks)

    def replaced(self) -> Buffers:
        """Return the buffers that were replaced by other tensors.

        Raises GraphError if another part was replaced, or an unsupported hook was added.
        """
        if RemovableHandle.next_id != self._hooks:
            self._hooks = self._count_hooks()
        if sum(map(len, self._tables)) == len(self._parts) and all(
            map(is_, chain.from_iterable(map(dict.values, self._tables)), self._parts)
        ):
            return []
        buffers: Buffers = []
        watched, old_parts = {id(table) for table in self._tables}, iter(self._parts)
        for path, table in self._named_tables():
            if id(table) not in watched:
                continue
            for name, part in table.items():
                old = next(old_parts, None)
                if part is old:
                    continue
                is_buffer = isinstance(part, torch.Tensor) and isinstance(old, torch.Tensor)
                if not is_buffer or isinstance(part, torch.nn.Parameter):
                    name = f"{path}.{name}" if path else name
                    raise GraphError(
                        f"{name} was replaced, added or removed after the step was made: make the "
                        "optimizer and the step again (`load_state_dict` without assign=True keeps "
                        "parameters)"
                    )
                buffers.append((old, part))
        if next(old_parts, self) is not self:
            raise GraphError("a part of the model was removed: make the step again")
        return buffers
