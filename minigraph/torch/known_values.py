"""Values of tensors that a model makes of constants: they are known while it is traced.

`torch.export` traces shapes and dtypes only, so it refuses `if mask.any()`, and `x[mask]` has no
shape, also where the mask is `~torch.eye(n, dtype=torch.bool)`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

FACTORIES = {
    *(torch.arange, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros),
    *(torch.tril_indices, torch.triu_indices),
}
NUMBERS = "__bool__ __contains__ __float__ __index__ __int__ allclose equal is_nonzero item tolist"
READERS = {*NUMBERS.split()}  # functions that return numbers
POSITIONS = {"nonzero", "where"}
ITEMS = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool
MAX_SIZE = 2**20  # elements of a known tensor


class KnownValues:
    """The values of tensors of one trace, which follow the calls of functions."""

    def __init__(self) -> None:
        self._values = WeakTensorKeyDictionary()
        self._lost: set[int] = set()  # storages to which something unknown was written

    def call(
        self,
        function: Callable[..., Any],
        traced: Callable[..., Any],
        args: Sequence[Any],
        named: Mapping[str, Any],
    ) -> Any:
        """Return the result of a call: its value for numbers and positions, if it is known.

        traced  what is traced in place of `function`
        """
        name = getattr(function, "__name__", "")
        if function in ITEMS:
            args = args[0], self._positions(args[1]), *args[2:]
        # Tracing itself reads attributes of the model's arguments, which are not fake yet.
        is_traced = function in FACTORIES or name == "__get__"
        value = None if is_traced else self._value(function, name, args, named)
        if value is not None and (name in READERS or (name in POSITIONS and len(args) == 1)):
            return value
        result = traced(*args, **named)
        if function in FACTORIES and isinstance(n := result.numel(), int) and n <= MAX_SIZE:
            value = self._value(function, name, args, named)
        for x, known in zip(pytree.tree_leaves(result), pytree.tree_leaves(value), strict=False):
            if isinstance(x, torch.Tensor) and isinstance(known, torch.Tensor):
                self._values[x] = known
        return result

    def _of(self, x: torch.Tensor) -> torch.Tensor | None:
        if is_functorch_wrapped_tensor(x):
            return None
        value = self._values.get(x)
        if value is None and not is_fake(x) and not x.requires_grad:
            value = x
        if value is None or value.untyped_storage()._cdata in self._lost:
            return None
        return value if value.numel() <= MAX_SIZE else None

    def _value(
        self, function: Callable[..., Any], name: str, args: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Return the value of a call; None if it is unknown or random."""
        target = args[0] if args and isinstance(args[0], torch.Tensor) else None
        changed = None if target is None else self._of(target)
        if target is not None and changed is None:
            return None
        leaves, structure = pytree.tree_flatten(([*args], dict(named)))
        values = [self._of(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        tensors = [
            value for x, value in zip(leaves, values, strict=True) if isinstance(x, torch.Tensor)
        ]
        is_unknown = any(x is None for x in tensors) or any(isinstance(x, SYMBOLIC) for x in leaves)
        if changed is not None and _writes(name) and (is_unknown or changed is target):
            self._lost.add(changed.untyped_storage()._cdata)  # the user's constants stay the same
            return None
        if not tensors and function not in FACTORIES:
            return None
        if is_unknown:
            return None
        args, named = pytree.tree_unflatten(values, structure)
        try:
            with _untraced():
                state = torch.random.get_rng_state()
                value = function(*args, **named)
                is_random = not torch.equal(state, torch.random.get_rng_state())
                torch.random.set_rng_state(state)
        except Exception:  # of which tracing tells
            return None
        if is_random and changed is not None:
            self._lost.add(changed.untyped_storage()._cdata)
        return None if is_random else value

    def _positions(self, index: Any) -> Any:
        """Return an index with the positions that known masks select in place of the masks."""
        parts: list[Any] = []
        for x in index if isinstance(index, tuple) else (index,):
            mask = self._of(x) if isinstance(x, torch.Tensor) and x.dtype == torch.bool else None
            if mask is None or not mask.ndim:
                parts.append(x)
            else:
                with _untraced():
                    parts += mask.nonzero(as_tuple=True)
        return tuple(parts) if isinstance(index, tuple) or len(parts) > 1 else parts[0]


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


def _writes(name: str) -> bool:
    """Return whether a function of this name changes its first argument."""
    if name in READERS or name == "__invert__":
        return False
    is_operator = name == "__setitem__" or name.startswith("__i")
    return is_operator or (name.endswith("_") and not name.endswith("__"))
