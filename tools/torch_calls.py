"""The sample inputs of PyTorch's own tests, and what PyTorch computes from them."""

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
# Their samples set the seed, or they leave open what is in memory.
DRAWN = {"bernoulli", "empty", "empty_like", "empty_permuted", "empty_strided", "multinomial"}
DRAWN |= {
    "new_empty",
    "new_empty_strided",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
}
DRAWN |= {"randn", "randn_like", "randperm", "uniform", "nn.functional.rrelu"}
DROPOUTS = "dropout dropout2d dropout3d alpha_dropout feature_alpha_dropout"
DRAWN |= {f"nn.functional.{name}" for name in DROPOUTS.split()}
DRAWN |= {"nn.functional.multi_head_attention_forward"}
TWICE = {f"nn.functional.max_unpool{n}d" for n in (1, 2, 3)}  # write several values to one place


@dataclass
class Sample:
    """One call, and what PyTorch gives for it, for each order.

    module       what makes the results of tensors
    tensors      its inputs
    expected     for each order, pairs of arrays: computed in float64, and in the inputs' type
    elementwise  whether results are as accurate as PyTorch's where they are small, too
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
    results: list = field(default_factory=list)  # for each order the nodes, or why there are none

    def __str__(self):
        return f"{self.name} {self.dtype} {self.text}"


class Call(torch.nn.Module):
    """A function of tensors, and of what else it takes.

    make  returns what a call of `function` gets, of the tensors; they may be in any structure
    """

    def __init__(self, function: Callable, arguments: tuple) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = pytree.tree_flatten(arguments)
        self.tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        self.leaves = [None if isinstance(x, torch.Tensor) else x for x in leaves]
        self.places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def forward(self, *tensors):
        leaves = list(self.leaves)
        for i, x in zip(self.places, tensors, strict=True):
            leaves[i] = x
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def tensors_of(results):
    """Return the results of a function of PyTorch as a list of tensors."""
    return [x for x in pytree.tree_leaves(results) if isinstance(x, torch.Tensor)]


def copied(x, wide):
    kept = not (wide and x.dtype.is_floating_point)
    made = x.detach().clone().to(x.dtype if kept else torch.float64)
    return made.requires_grad_(x.requires_grad)


def expected(module, tensors):
    """Return the orders as pairs; None where PyTorch computes nothing, or draws random numbers."""
    both = []
    for wide in (True, False):
        try:
            own = copy.deepcopy(module)
            own = own.double() if wide else own
            xs = [copied(x, wide) for x in tensors]
            torch.manual_seed(1)
            ys = tensors_of(own(*xs))
            wrt = [x for x in (*xs, *own.parameters()) if x.requires_grad]
            both.append(derivatives(ys, wrt))
            torch.manual_seed(2)
            again = tensors_of(copy.deepcopy(module)(*tensors)) if not wide else ys
            if not wide and not all(
                torch.equal(x.nan_to_num(), y.nan_to_num())
                for x, y in zip(ys, again, strict=True)
                if not x.is_complex()
            ):
                return None
        except ERRORS:
            both.append(None)
    wide, own = both
    if own is None:
        return None
    wide = own if wide is None or len(wide) < len(own) else wide
    if any(len(w) != len(o) for w, o in zip(wide, own, strict=False)):
        wide = own
    return [list(zip(w, o, strict=True)) for w, o in zip(wide, own, strict=False)]


def derivatives(ys, xs):
    """Return for each order the arrays that PyTorch computes; fewer where it has none."""
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
    """Numbers around 1 that every float holds exactly."""
    return np.asarray(np.random.default_rng(seed).integers(4, 12, tuple(shape)) / 8)


def samples_of_op(op, dtype, limit):
    """Yield the samples of an op of PyTorch in a dtype."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    requires_grad = kind.is_floating_point and op.supports_autograd
    elementwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)
    given = op.sample_inputs("cpu", kind, requires_grad=requires_grad)
    for sample in itertools.islice(given, limit):
        if sample.kwargs.get("dropout_p") or op.name in DRAWN | TWICE:
            continue
        arguments = ((sample.input, *sample.args), sample.kwargs)
        call = Call(op, arguments)
        pairs = expected(call, call.tensors)
        if pairs is not None:
            text = " ".join(str(shown(v)) for v in (sample.input, sample.args, sample.kwargs))
            yield Sample(op.name, dtype, text, call, call.tensors, pairs, elementwise)


def samples_of_module(info, dtype, limit):
    """Yield the samples of a layer of PyTorch in a dtype."""
    kind = getattr(torch, dtype)
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        given = info.module_inputs_func(
            info, device="cpu", dtype=kind, requires_grad=True, training=training
        )
        for sample in itertools.islice(given, limit):
            how, called = sample.constructor_input, sample.forward_input
            layer = info.module_cls(*how.args, **how.kwargs).to(kind).train(training)
            call = Call(layer, (called.args, called.kwargs))
            pairs = expected(call, call.tensors)
            if pairs is not None:
                text = f"{shown((how.args, how.kwargs))} of {shown((called.args, called.kwargs))}"
                text += f", training={training}"
                yield Sample(info.name, dtype, text, call, call.tensors, pairs)


def shown(value):
    return pytree.tree_map_only(torch.Tensor, lambda x: f"{str(x.dtype)[6:]}{[*x.shape]}", value)


def families():
    """Yield for each op and layer its name, its dtypes and what makes samples."""
    for op in op_db:
        yield op.name, op.dtypes, functools.partial(samples_of_op, op)
    for info in module_db:
        kinds = [*info.dtypes, torch.float16, torch.bfloat16]
        yield info.name, kinds, functools.partial(samples_of_module, info)
