"""Gradients within a model, which `torch.export` does not trace.

While a model is traced, `Function.apply` is replaced.  The replacement traces `backward` right
after `forward`: the operator `gradient` stands for the gradient of the result, and `with_gradient`
joins both graphs.  `torch.autograd.grad` becomes the operator `grad`.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import Function, FunctionCtx
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from minigraph import ops
from minigraph.autodiff import vjp
from minigraph.errors import GraphError
from minigraph.graph import Node, placeholders
from minigraph.ops.custom_gradient import with_gradient
from minigraph.torch.known_values import KnownValues
from minigraph.torch.operators import define
from minigraph.torch.substitutes import SUBSTITUTES, truth_without_error

APPLY = vars(Function)["apply"]
ENTER = torch.inference_mode.__enter__


def _with_gradient(y: Node, dy: Node, xs: Sequence[Node], dxs: Sequence[Node]) -> Node:
    cast = [ops.astype(dx, x.dtype) for x, dx in zip(xs, dxs, strict=True)]
    return with_gradient(y, dy, xs, cast)


define("gradient(Tensor y) -> Tensor", torch.empty_like, lambda y: placeholders([y.spec])[0])
define(
    "with_gradient(Tensor y, Tensor dy, Tensor[] xs, Tensor[] dxs) -> Tensor",
    lambda y, *unused: torch.empty_like(y),
    _with_gradient,
)
define(
    "grad(Tensor[] ys, Tensor[] dys, Tensor[] xs) -> Tensor[]",
    lambda ys, dys, xs: [*map(torch.empty_like, xs)],
    lambda ys, dys, xs: vjp(ys, dys, xs),
)


class _Context(FunctionCtx):  # type: ignore[misc]
    """The context of one call: tensors that `forward` saves for `backward`."""

    to_save: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(map(_is_float, args))

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self.to_save

    def mark_dirty(self, *args: Any) -> None:
        raise GraphError("a torch.autograd.Function that changes its input is not supported")


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def _apply(cls: type[Function], *args: Any) -> Any:
    """Return the results of a function; if gradients are enabled, they carry its `backward`."""
    if cls is CheckpointFunction:  # a graph needs no recomputation in the backward pass
        run, _, *inputs = args
        with torch.set_grad_enabled(any(_is_float(x) and x.requires_grad for x in inputs)):
            return run(*inputs)
    if torch._C._are_functorch_transforms_active():
        raise GraphError("a torch.autograd.Function in a transform of torch.func is not supported")
    has_setup = cls.setup_context is not Function.setup_context
    if has_setup:
        bound = inspect.signature(cls.forward).bind(*args)
        bound.apply_defaults()
        args = bound.args
    context = _Context(args)
    result = cls.forward(*args) if has_setup else cls.forward(context, *args)
    if has_setup:
        cls.setup_context(context, args, result)
    if not torch.is_grad_enabled():
        return result
    results = [*result] if isinstance(result, tuple) else [result]
    non_differentiable = {*map(id, context.non_differentiable)}
    indices = [i for i, y in enumerate(results) if _is_float(y) and id(y) not in non_differentiable]
    if not indices:
        return result
    ys = [results[i] for i in indices]
    # One vector, because each gradient may depend on the gradients of all results.
    y = ys[0] if len(ys) == 1 else torch.cat([y.flatten() for y in ys])
    dy = torch.ops.minigraph.gradient(y.detach())
    dys = [torch.zeros_like(x) if isinstance(x, torch.Tensor) else None for x in results]
    for i, part in zip(indices, _split(dy, ys), strict=True):
        dys[i] = part
    backward = cls.vjp if cls.backward is Function.backward else cls.backward
    dxs = backward(context, *dys)
    pairs = zip(args, dxs if isinstance(dxs, tuple) else (dxs,), strict=False)
    differentiable = [(x, dx) for x, dx in pairs if _is_float(x) and dx is not None]
    xs, dxs = [x for x, _ in differentiable], [dx for _, dx in differentiable]
    y = torch.ops.minigraph.with_gradient(y, dy, xs, dxs)
    for i, part in zip(indices, _split(y, ys), strict=True):
        results[i] = part
    return tuple(results) if isinstance(result, tuple) else results[0]


def _split(joined: torch.Tensor, ys: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    if len(ys) == 1:
        return [joined]
    pieces = joined.split([y.numel() for y in ys])
    return [piece.view(y.shape).to(y.dtype) for piece, y in zip(pieces, ys, strict=True)]


def _grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *unused: Any,
    create_graph: bool = False,
    is_grads_batched: bool = False,
    **named: Any,
) -> tuple[torch.Tensor, ...]:
    """Return gradients as `torch.autograd.grad`; zeros for inputs that no output depends on."""
    if is_grads_batched:
        raise GraphError("torch.autograd.grad with is_grads_batched=True is not supported")
    ys, xs = ([x] if isinstance(x, torch.Tensor) else [*x] for x in (outputs, inputs))
    is_one = grad_outputs is None or isinstance(grad_outputs, torch.Tensor)
    dys = [grad_outputs] * len(ys) if is_one else [*grad_outputs]
    for i, (y, dy) in enumerate(zip(ys, dys, strict=True)):
        if y.numel() != 1 if dy is None else dy.shape != y.shape:
            given = "None" if dy is None else f"of shape {tuple(dy.shape)}"
            raise GraphError(
                f"torch.autograd.grad: output {i} has shape {tuple(y.shape)}, and grad_outputs are "
                f"{given}; torch.ones_like(output) adds up the gradients of its elements"
            )
        dys[i] = torch.ones_like(y) if dy is None else dy.to(y.dtype)
    grads = torch.ops.minigraph.grad(ys, dys, xs)
    return tuple(grads if create_graph else (dx.detach() for dx in grads))


def _truth(x: torch.Tensor) -> bool:
    """Return the truth of a condition that decides only whether an error is raised."""
    if hasattr(x, "are_finite"):
        return True
    frame = sys._getframe(2)  # below that of `KnownValues.call`
    while frame.f_back and frame.f_code.co_name == "__torch_function__":  # of torch's modes
        frame = frame.f_back
    truth = truth_without_error(frame)
    return torch.Tensor.__bool__(x) if truth is None else truth


TRACED = {torch.autograd.grad: _grad, torch.Tensor.__bool__: _truth, **SUBSTITUTES}
REFUSED = {
    torch.Tensor.data.__set__: (
        "an assignment to x.data is not supported; use x.copy_(value) under torch.no_grad()"
    ),
    torch.Tensor.register_hook: "a hook on a tensor's gradient is not supported",
    torch.Tensor.backward: "backward() in a model is not supported",
}


class _Changes(TorchFunctionMode):  # type: ignore[misc]
    """Trace substitutes of some functions; raise GraphError for calls that a graph would lose."""

    def __init__(self) -> None:
        super().__init__()
        self._known = KnownValues()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in REFUSED:
            raise GraphError(REFUSED[function])
        traced = TRACED.get(function, function)
        if torch.compiler.is_dynamo_compiling():  # the body of a loop
            return traced(*args, **(kwargs or {}))
        return self._known.call(function, traced, args, kwargs or {})


@contextlib.contextmanager
def traced_gradients() -> Iterator[None]:
    """Trace the gradients of `torch.autograd.Function`s in this thread, one thread at a time.

    Meanwhile `torch.inference_mode`, which graphs do not record, acts as `torch.no_grad`.
    """
    thread = threading.get_ident()

    def apply(cls: type[Function], *args: Any, **named: Any) -> Any:
        # Functions of torch's control flow and of custom operators are traced as operators.
        is_operator = cls.__module__.startswith(("torch._higher_order_ops", "torch._library"))
        if is_operator or threading.get_ident() != thread:
            return APPLY.__get__(None, cls)(*args, **named)
        return _apply(cls, *args, **named)

    def enter(mode: torch.inference_mode) -> None:
        if threading.get_ident() != thread:
            ENTER(mode)
            return
        mode._inference_mode_context = torch.no_grad() if mode.mode else contextlib.nullcontext()
        mode._inference_mode_context.__enter__()

    Function.apply, torch.inference_mode.__enter__ = classmethod(apply), enter
    try:
        with _Changes():
            yield
    finally:
        Function.apply, torch.inference_mode.__enter__ = APPLY, ENTER
