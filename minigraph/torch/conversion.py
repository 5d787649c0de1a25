"""A PyTorch model as a module of minigraph, on the same memory."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch.export import Dim, ShapesCollection
from torch.utils import _pytree as pytree

from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import Node, Parameter, as_node
from minigraph.nn.module import Module
from minigraph.torch.batch import TensorSpec, call_text, description
from minigraph.torch.capture import capture
from minigraph.torch.interpret import interpret
from minigraph.torch.memory import SharedParameters, device_of


class ConvertedModule(Module):
    """A PyTorch model as a module, with its parameters and buffers under the same names.

    A call builds expressions of the captured graph: in the model's mode at that time, training or
    evaluation, and for inputs like the example's.  The result has the model's structure.
    `updates()` returns the changes of a call in training, such as the statistics of batch norms.

    Parameters share the memory of the model's tensors: a change of one is a change of the other.
    When a tensor gets new memory (`model.double()`, or `load_state_dict` with assign=True),
    compiled functions keep the old memory: convert the model again.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        dynamic: Any = False,
    ) -> None:
        super().__init__()
        self._what = f"convert({type(model).__name__})"
        if not isinstance(args, tuple | list):
            raise GraphError(
                f"{self._what}: the example is a tuple of the model's arguments, such as "
                f"(images,), not a {type(args).__name__}"
            )
        call = (tuple(args), dict(kwargs or {}))
        leaves, self._structure = pytree.tree_flatten(call)
        sizes = _any_first_size(model, call, leaves) if dynamic is True else dynamic or None
        self._program = capture(self._what, model, call[0], sizes, call[1])
        traced = {x.name: x.meta.get("val") for x in self._program.graph.nodes}
        names = self._program.graph_signature.user_inputs
        self._inputs = [
            TensorSpec.like(traced[name]) if isinstance(x, torch.Tensor) else x
            for x, name in zip(leaves, names, strict=True)
        ]
        state_dict = model.state_dict(keep_vars=True)
        state = SharedParameters(device_of(model)).share_module(model, self._program.constants)
        self._captured_state: UserDict[str, Parameter] = UserDict(state)
        for name, parameter in self._captured_state.items():
            if name in state_dict:  # else it is in no state dict of the model
                self._add(name, parameter)
        self.training = model.training

    def _add(self, path: str, parameter: Parameter) -> None:
        *parents, name = path.split(".")
        module: Module = self
        for parent in parents:
            child = vars(module).get(parent)
            if child is None:
                child = Module()
                setattr(module, parent, child)
            module = child
        setattr(module, name, parameter)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        try:
            leaves = self._structure.flatten_up_to((args, kwargs))
        except ValueError:
            raise GraphError(
                f"the call is {call_text(*pytree.tree_flatten((args, kwargs)))}, and the example "
                f"was {call_text(self._inputs, self._structure)}"
            ) from None
        nodes = []
        for i, (leaf, expected) in enumerate(zip(leaves, self._inputs, strict=True)):
            if isinstance(expected, TensorSpec):
                nodes.append(as_node(leaf))
                self._check_input(i, nodes[-1], expected)
            elif isinstance(leaf, Node) or leaf != expected:
                raise GraphError(
                    f"input {i} was {expected!r} in the example, a constant of the graph, and is "
                    f"{description(leaf)!r} now: convert the model with the new value"
                )
        result = interpret(self._what, self._program, nodes, self._captured_state)
        for name, value in result.changes.items():
            Module.update(self, self._captured_state[name], value)  # the model may have an `update`
        return result.outputs

    def _check_input(self, i: int, node: Node, expected: TensorSpec) -> None:
        mismatch = f"input {i} was {expected} in the example, not {node.spec}"
        if node.dtype != expected.dtype:
            raise DTypeError(mismatch)
        if len(node.shape) != len(expected.shape):
            raise ShapeError(mismatch)
        for n, fixed in zip(node.shape, expected.shape, strict=True):
            if fixed is not None and (not isinstance(n, int) or n != fixed):
                raise ShapeError(f"{mismatch}; dynamic=True converts for any number of examples")

    def train(self, mode: bool = True) -> Self:
        """Return the module; GraphError if the model was converted in the other mode."""
        if mode != self.training:
            word = "train" if mode else "eval"
            raise GraphError(
                f"{self._what}: the model was in {'training' if self.training else 'evaluation'}; "
                f"convert it again after model.{word}()"
            )
        return self

    def __reduce__(self) -> Any:
        raise GraphError(
            f"{self._what} is not copied or pickled, because it shares memory with the model: "
            "convert a copy of the model, or save state_dict()"
        )


def convert(
    model: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Any = False,
) -> ConvertedModule:
    """Return a minigraph module of a PyTorch model, on the same memory.

    args, kwargs  example arguments of the model, which fix dtypes, shapes, and the values of
                  arguments that are not tensors
    dynamic       True: the first size of each input may differ between calls; it is two or more in
                  the example.  Or the dynamic_shapes of `torch.export.export`

    The model is captured in its present mode: call `model.eval()` or `model.train()` before.
    Raises GraphError if `torch.export` cannot trace it, for example because of data-dependent
    control flow, and for unsupported operators, with their counts and lines.

    >>> import torch, minigraph.torch as mgt
    >>> model = torch.nn.Linear(3, 2).eval()
    >>> net = mgt.convert(model, (torch.zeros(4, 3),), dynamic=True)
    >>> x = mg.input("x", (None, 3))
    >>> f = cg.compile([x], net(x))
    >>> model.bias.data.fill_(1.0)
    tensor([1., 1.])
    >>> f(np.zeros((1, 3)))
    array([[1., 1.]], dtype=float32)
    """
    return ConvertedModule(model, args, kwargs, dynamic=dynamic)


def _any_first_size(model: torch.nn.Module, call: Any, leaves: Sequence[Any]) -> Any:
    """Return the dynamic_shapes that make the first size of each tensor symbolic."""
    sizes = ShapesCollection()
    for x in leaves:
        if isinstance(x, torch.Tensor) and x.ndim:
            if len(x) < 2:
                raise ShapeError(
                    f"convert({type(model).__name__}): dynamic=True needs an example batch of two "
                    f"or more, because torch.export takes a size of {len(x)} as fixed"
                )
            sizes[x] = {0: Dim.DYNAMIC}
    return sizes.dynamic_shapes(model, *call)
