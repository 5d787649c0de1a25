"""The sample inputs of PyTorch's own tests, and the results that PyTorch computes from them."""

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch.utils import _pytree as pytree

from minigraph.torch.memory import array_of

ERRORS = (RuntimeError, IndexError, ValueError, TypeError, KeyError, AssertionError)
# Ops with random results, or with results that are unset memory.
RANDOM = {"bernoulli", "empty", "empty_like", "empty_permuted", "empty_strided", "multinomial"}
RANDOM |= {
    "new_empty",
    "new_empty_strided",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
}
RANDOM |= {"randn", "randn_like", "randperm", "uniform", "nn.functional.rrelu"}
DROPOUTS = "dropout dropout2d dropout3d alpha_dropout feature_alpha_dropout"
RANDOM |= {f"nn.functional.{name}" for name in DROPOUTS.split()}
RANDOM |= {"nn.functional.multi_head_attention_forward"}
TWICE = {f"nn.functional.max_unpool{n}d" for n in (1, 2, 3)}  # write several values to one place


@dataclass
class Sample:
    """One call, and the results of PyTorch for it, for each order of derivative.

    module       computes the results from tensors
    tensors      the inputs of the module
    expected     for each order, pairs of arrays: computed in float64, and in the inputs' type
    elementwise  whether small results must also be as accurate as PyTorch's
    """

    name: str
    dtype: str
    text: str
    module: torch.nn.Module
    tensors: list
    expected: list
    elementwise: bool = False
    inputs: list = field(default_factory=list)  # expressions, and their arrays
    arrays: list = field(default_factory=list)
    results: list = field(default_factory=list)  # for each order the nodes, or an error

    def __str__(self):
        return f"{self.name} {self.dtype} {self.text}"


class Call(torch.nn.Module):
    """A function of tensors, called with other arguments that are fixed.

    arguments  the positional and keyword arguments, with tensors anywhere in them
    """

    def __init__(self, function: Callable, arguments: tuple) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = pytree.tree_flatten(arguments)
        self.tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        self.leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self.positions = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def forward(self, *tensors):
        leaves = list(self.leaves)
        for i, x in zip(self.positions, tensors, strict=True):
            leaves[i] = x
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def tensors_of(results):
    """Return the results of a function of PyTorch as a list of tensors."""
    return [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]


def copied(x, wide):
    dtype = torch.float64 if wide and x.dtype.is_floating_point else x.dtype
    return x.detach().clone().to(dtype).requires_grad_(x.requires_grad)


def expected(module, tensors):
    """Return the results of each order as pairs; None if PyTorch fails, or draws random numbers."""
    both = []
    for wide in (True, False):
        try:
            duplicate = copy.deepcopy(module)
            duplicate = duplicate.double() if wide else duplicate
            xs = [copied(x, wide) for x in tensors]
            torch.default_generator.manual_seed(1)
            ys = tensors_of(duplicate(*xs))
            wrt = [x for x in (*xs, *duplicate.parameters()) if x.requires_grad]
            both.append(derivatives(ys, wrt))
            torch.default_generator.manual_seed(2)
            repeated = tensors_of(copy.deepcopy(module)(*tensors)) if not wide else ys
            if not wide and not all(
                torch.equal(x.nan_to_num(), y.nan_to_num())
                for x, y in zip(ys, repeated, strict=True)
                if not x.is_complex()
            ):
                return None
        except ERRORS:
            both.append(None)
    wide, narrow = both
    if narrow is None:
        return None
    wide = narrow if wide is None or len(wide) < len(narrow) else wide
    if any(len(w) != len(n) for w, n in zip(wide, narrow, strict=False)):
        wide = narrow
    return [list(zip(w, n, strict=True)) for w, n in zip(wide, narrow, strict=False)]


def derivatives(ys, xs):
    """Return for each order the arrays that PyTorch computes; fewer if it has no derivatives."""
    orders = [ys]
    for number in (1, 2):
        parts = [
            (y * torch.from_numpy(weights(y.shape, number + i)).to(y.dtype)).sum()
            for i, y in enumerate(orders[-1])
            if y.requires_grad
        ]
        if not parts or not xs:
            break
        try:
            grads = torch.autograd.grad(
                sum(parts), xs, create_graph=number == 1, materialize_grads=True, allow_unused=True
            )
        except ERRORS:
            break
        orders.append(list(grads))
    return [[numpy_of(y) for y in order] for order in orders]


def numpy_of(x):
    x = x.detach().resolve_conj().resolve_neg()
    return x.numpy() if x.is_complex() else array_of(x.contiguous())


def weights(shape, seed):
    """Numbers around 1 that each float dtype holds exactly."""
    return np.asarray(np.random.default_rng(seed).integers(4, 12, tuple(shape)) / 8)


def samples_of_op(op, dtype, limit):
    """Yield the samples of an op of PyTorch in a dtype."""
    torch.default_generator.manual_seed(0)
    kind = getattr(torch, dtype)
    requires_grad = kind.is_floating_point and op.supports_autograd
    elementwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)
    samples = op.sample_inputs("cpu", kind, requires_grad=requires_grad)
    for sample in itertools.islice(samples, limit):
        if sample.kwargs.get("dropout_p") or op.name in RANDOM | TWICE:
            continue
        arguments = ((sample.input, *sample.args), sample.kwargs)
        call = Call(op, arguments)
        pairs = expected(call, call.tensors)
        if pairs is not None:
            text = " ".join(str(describe(v)) for v in (sample.input, sample.args, sample.kwargs))
            yield Sample(op.name, dtype, text, call, call.tensors, pairs, elementwise)


def samples_of_module(info, dtype, limit):
    """Yield the samples of a layer of PyTorch in a dtype."""
    kind = getattr(torch, dtype)
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.default_generator.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=kind, requires_grad=True, training=training
        )
        for sample in itertools.islice(samples, limit):
            constructor, forward = sample.constructor_input, sample.forward_input
            layer = info.module_cls(*constructor.args, **constructor.kwargs)
            layer = layer.to(kind).train(training)
            call = Call(layer, (forward.args, forward.kwargs))
            pairs = expected(call, call.tensors)
            if pairs is not None:
                text = f"{describe((constructor.args, constructor.kwargs))} of "
                text += f"{describe((forward.args, forward.kwargs))}"
                text += f", training={training}"
                yield Sample(info.name, dtype, text, call, call.tensors, pairs)


def describe(value):
    return pytree.tree_map_only(torch.Tensor, lambda x: f"{str(x.dtype)[6:]}{[*x.shape]}", value)


def families():
    """Yield for each op and layer its name, its dtypes and a function that yields samples."""
    for op in op_db:
        yield op.name, op.dtypes, functools.partial(samples_of_op, op)
    for info in module_db:
        kinds = [*info.dtypes, torch.float16, torch.bfloat16]
        yield info.name, kinds, functools.partial(samples_of_module, info)
