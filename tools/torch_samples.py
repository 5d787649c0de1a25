"""Every op, layer and optimizer that PyTorch has too, on the sample inputs of PyTorch's own tests.

    python tools/torch_samples.py [OP ...] [--levels 0 3] [--dtypes float32] [--json FILE]

The samples are those of `op_db`, `module_db` and `optim_db` in `torch.testing._internal` (which
needs expecttest).  tools/torch_names.py says how PyTorch's functions are called here.  Values,
gradients and second derivatives are compared with what PyTorch computes in float64 from the same
inputs, or in the inputs' type.  What is counted:

passed   agrees to rounding
wrong    another value, shape or kind of dtype, or an error that is no GraphError
refused  a GraphError; or an argument, a layer or an optimizer's option that does not exist here

The level "ops" is the meaning of ops, in NumPy, without a compiled function.
"""

import argparse
import collections
import copy
import functools
import inspect
import itertools
import json
import re
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.testing._internal.common_optimizers import optim_db
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo
from torch_names import (
    ARGUMENTS,
    COARSE_IN_TORCH,
    FLAT,
    NAN_IN_TORCH,
    OTHERS,
    TRANSLATED,
    Refused,
)
from torch_rounding import difference, largest

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import FLOATS, Graph, Node

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")
LEVELS = ("ops", "0", "1", "2", "3")
ORDERS = ("values", "gradients", "second derivatives")
IMPLEMENTATIONS = {"foreach", "fused", "differentiable"}  # arguments that change no number
IGNORED = {"device", "requires_grad", "layout", "memory_format", "pin_memory"}
NUMBERS = itertools.count()  # of inputs


@dataclass
class Sample:
    """One call: what to call here, on which arrays, and what PyTorch gives, for each order.

    arrays       by input
    build        makes the results of inputs; the list of them
    wrt          numbers of the inputs that gradients are taken of
    expected     for each order, pairs of arrays: computed in float64, and in the inputs' type
    elementwise  whether results are as accurate as PyTorch's where they are small, too
    """

    name: str
    dtype: str
    text: str
    arrays: list
    build: object
    wrt: list
    expected: list
    elementwise: bool = False
    inputs: list = field(default_factory=list)
    parameters: list = field(default_factory=list)  # of a layer
    results: list = field(default_factory=list)  # for each order the nodes, or why there are none

    def __str__(self):
        return f"{self.name} {self.dtype} {self.text}"


# ---------------------------------------------------------------- PyTorch's side


def mapped(fn, value):
    """Apply `fn` to the tensors among arguments."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(fn, each) for each in value)
    if isinstance(value, dict):
        return {name: mapped(fn, each) for name, each in value.items()}
    return value


def copies(value, wide, leaves):
    """Copy arguments, in float64 if `wide`, and collect the tensors that require gradients."""

    def copy(x):
        is_float = x.dtype.is_floating_point
        made = x.detach().clone().to(torch.float64 if wide and is_float else x.dtype)
        if x.requires_grad:
            leaves.append(made.requires_grad_())
        return made

    return mapped(copy, value)


def tensors(value):
    """Return the results of a function of PyTorch as a list of tensors."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return list(itertools.chain.from_iterable(map(tensors, value)))
    return [torch.tensor(value)]


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
        except (RuntimeError, NotImplementedError):
            break
        orders.append(list(grads))
    return [[array_of(y) for y in order] for order in orders]


def array_of(x):
    x = x.detach().resolve_conj().resolve_neg()
    if x.dtype == torch.bfloat16:
        return x.float().numpy().astype(ml_dtypes.bfloat16)
    return x.numpy()


def weights(shape, seed):
    """Numbers around 1 that every float holds exactly."""
    return np.asarray(np.random.default_rng(seed).integers(4, 12, tuple(shape)) / 8)


def torchs(call, arguments):
    """Return the orders in float64 and in the inputs' type, and the tensors that are inputs."""
    both = []
    for wide in (True, False):
        leaves = []
        copied = copies(arguments, wide, leaves)
        try:
            ys = tensors(call(copied, wide, leaves))
            both.append(derivatives(ys, leaves))
        except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError):
            both.append(None)
    wide, own = both
    if wide is None and own is None:
        return None
    wide = own if wide is None else wide
    own = wide if own is None else own
    if len(own) < len(wide):
        own = own + wide[len(own) :]
    if [len(o) for o in wide] != [len(o) for o in own[: len(wide)]]:
        wide = own
    return [list(zip(w, o, strict=True)) for w, o in zip(wide, own, strict=False)]


# ---------------------------------------------------------------- our side


def ours(name):
    """Return our function for PyTorch's of this name; None if there is none."""
    given = TRANSLATED.get(name, name.rpartition(".")[2])
    if name in OTHERS or name.startswith(("masked.", "special.")) or given is None:
        return None
    return given if callable(given) else Node.functions.get(given)


def argument(value):
    """Return what is no tensor as functions here take it."""
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.Size):
        return tuple(value)
    return value


def samples_of_op(op, dtype, limit):
    """Yield the samples of an op of PyTorch in a dtype."""
    function = ours(op.name)
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    requires_grad = kind.is_floating_point and op.supports_autograd
    given = op.sample_inputs("cpu", kind, requires_grad=requires_grad)
    for sample in itertools.islice(given, limit):
        named = {k: v for k, v in sample.kwargs.items() if k not in IGNORED}
        arguments = (sample.input, sample.args, sample.kwargs)
        expected = torchs(lambda a, wide, leaves: op(a[0], *a[1], **a[2]), arguments)
        if expected is None:
            continue
        inputs = []
        mapped(inputs.append, (sample.input, sample.args, named))

        def build(nodes, sample=sample, named=named):
            left = iter(nodes)
            first, args, kwargs = mapped(lambda x: next(left), (sample.input, sample.args, named))
            args = [argument(a) for a in args]
            translated = op.name in TRANSLATED and callable(TRANSLATED[op.name])
            names = {} if translated else ARGUMENTS
            return function(
                first, *args, **{names.get(k, k): argument(v) for k, v in kwargs.items()}
            )

        text = " ".join(str(shown(v)) for v in arguments)
        wrt = [i for i, x in enumerate(inputs) if x.requires_grad]
        arrays = list(map(array_of, inputs))
        elementwise = isinstance(op, UnaryUfuncInfo | BinaryUfuncInfo)
        yield Sample(op.name, dtype, text, arrays, build, wrt, expected, elementwise)


def samples_of_module(info, dtype, limit):
    """Yield the samples of a layer of PyTorch in a dtype."""
    kind = getattr(torch, dtype)
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        given = info.module_inputs_func(
            info, device="cpu", dtype=kind, requires_grad=True, training=training
        )
        for sample in itertools.islice(given, limit):
            made = _sample_of_module(info, dtype, training, sample)
            if made is not None:
                yield made


def chosen(theirs, mine, args, kwargs):
    """Return arguments by name, without defaults of PyTorch's for what does not exist here."""
    signature = inspect.signature(theirs)
    given = signature.bind(*args, **kwargs).arguments
    defaults = {name: p.default for name, p in signature.parameters.items()}
    for name, p in signature.parameters.items():
        if p.kind is inspect.Parameter.VAR_KEYWORD:  # as recurrent layers have it
            given.update(given.pop(name, {}))
            defaults["proj_size"] = 0
    known = inspect.signature(mine).parameters
    return {
        name: value
        for name, value in given.items()
        if name not in (*IGNORED, "dtype")
        and (name in known or value is not defaults.get(name, signature.empty))
    }


def _sample_of_module(info, dtype, training, sample):
    called, how = sample.forward_input, sample.constructor_input
    theirs = info.module_cls(*how.args, **how.kwargs).to(getattr(torch, dtype)).train(training)
    state = {name: array_of(value) for name, value in theirs.state_dict().items()}
    layer = getattr(nn, info.name.removeprefix("nn."))
    named = chosen(info.module_cls, layer, how.args, how.kwargs)

    def call(arguments, wide, leaves):
        module = copy.deepcopy(theirs)
        module = module.double() if wide else module
        leaves += [p for p in module.parameters() if p.requires_grad]
        args, kwargs = arguments
        return module(*args, **kwargs)

    arguments = (called.args, called.kwargs)
    expected = torchs(call, arguments)
    if expected is None:
        return None
    inputs = []
    mapped(inputs.append, arguments)
    wrt = [i for i, x in enumerate(inputs) if x.requires_grad]
    text = f"{shown(named)} of {shown(called.args)}, training={training}"
    made = Sample(info.name, dtype, text, list(map(array_of, inputs)), None, wrt, expected)

    def build(nodes):
        kwargs = mapped(array_of, named)
        if "dtype" in inspect.signature(layer).parameters:
            kwargs["dtype"] = dtype
        module = layer(**kwargs).train(training)
        module.load_state_dict(state)
        made.parameters = list(module.parameters())
        left = iter(nodes)
        args, kwargs = mapped(lambda x: next(left), arguments)
        return module(*args, **kwargs)

    made.build = build
    return made


def trained(info, dtype, level, counts):
    """Compare five steps of an optimizer, for each choice of arguments that PyTorch tests."""
    name = info.optim_cls.__name__
    for given in info.optim_inputs_func("cpu"):
        start = [weights((3, 4), 1).astype(dtype), weights((4,), 2).astype(dtype)]
        sample = Sample(f"optim.{name}", dtype, given.desc, [], None, [], [])
        theirs = [torch.tensor(x, requires_grad=True) for x in start]
        optimizer = info.optim_cls(theirs, **given.kwargs)
        mine = [mg.Parameter(x, f"p{i}") for i, x in enumerate(start)]
        kwargs = {k: v for k, v in given.kwargs.items() if k not in IMPLEMENTATIONS or v is None}
        kwargs = {k: v for k, v in kwargs.items() if k not in ("maximize", "capturable") or v}
        try:
            loss = ops.square(ops.tanh(mine[0] * mine[1]) - 0.3).sum()
            updates = getattr(optim, name)(mine, **kwargs).minimize(loss)
            options = {"graph_opt_level": int(level)}
            step = mg.comp_graph("cpu", options).compile([], loss, updates=updates)
        except mg.GraphError as error:
            counts.refuse(sample, reason(error))
            continue
        except TypeError as error:
            counts.refuse(sample, missing(error))
            continue
        for _ in range(5):
            optimizer.zero_grad()
            torch.square(torch.tanh(theirs[0] * theirs[1]) - 0.3).sum().backward()
            optimizer.step()
            step()
        pairs = [(p.numpy(), array_of(q), array_of(q)) for p, q in zip(mine, theirs, strict=True)]
        wrong = [d for f, w, o in pairs if (d := difference(f, w, o, 1.0))]
        if wrong:
            counts.fail(sample, 0, level, wrong[0])
        else:
            counts.passed[sample.name, dtype, ORDERS[0], level] += 1


def shown(value):
    return mapped(lambda x: f"{str(x.dtype)[6:]}{[*x.shape]}", value)


def flattened(results):
    """Return results that may be in tuples of tuples in a list."""
    if not isinstance(results, tuple | list):
        return [results]
    return [y for part in results for y in flattened(part)]


def build(sample):
    """Make the expressions of a sample: for each order its nodes, or the reason why not."""
    sample.inputs = [mg.input(f"x{next(NUMBERS)}", x.shape, x.dtype) for x in sample.arrays]
    ys = xs = None
    for order, expected in enumerate(sample.expected):
        try:
            if order == 0:
                ys = flattened(sample.build(sample.inputs))
                xs = [*(sample.inputs[i] for i in sample.wrt), *sample.parameters]
            else:
                parts = [
                    ops.sum(ops.astype(y * weights(y.shape, order + i).astype(y.dtype), y.dtype))
                    for i, y in enumerate(ys)
                    if y.dtype in FLOATS
                ]
                ys = mg.grad(sum(parts[1:], parts[0]), xs)
            if len(ys) != len(expected):
                raise Refused(f"{len(ys)} results, not {len(expected)}")
            sample.results.append(list(ys))
        except (mg.GraphError, Refused) as error:
            return sample.results.append(reason(error))
        except TypeError as error:
            if "argument" not in str(error):
                return sample.results.append(error)
            return sample.results.append(missing(error))
        except Exception as error:
            return sample.results.append(error)
    return None


def reason(error):
    """Return the first words of a GraphError, without the numbers of this sample."""
    text = str(error).split("\n")[0]
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)| at \S+:\d+$", "…", text)
    text = re.sub(r"\binput x\d+", "x", text)
    return re.sub(r"(?<!\w)-?\d+(\.\d+)?(?!\w)", "N", text.strip(" …"))[:120]


def missing(error):
    named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    return f"there is no argument {named[1]}" if named else "there are not so many arguments"


# ---------------------------------------------------------------- comparing


def computed(samples, level):
    """Yield each sample with its results as arrays, or with the error that came instead."""
    ready = [s for s in samples if s.results and isinstance(s.results[0], list)]
    if not ready:
        return
    try:
        yield from zip(ready, run(ready, level), strict=True)
    except Exception as error:
        if len(ready) == 1:
            yield ready[0], error
            return
        half = len(ready) // 2
        yield from computed(ready[:half], level)
        yield from computed(ready[half:], level)


def run(samples, level):
    """Compute all results of samples in one function."""
    inputs = [x for s in samples for x in s.inputs]
    arrays = [a for s in samples for a in s.arrays]
    nodes = [y for s in samples for order in s.results if isinstance(order, list) for y in order]
    if level == "ops":
        values = iter(Graph(tuple(inputs), tuple(nodes))(*arrays))
    else:
        options = {"graph_opt_level": int(level), "autotune": "off"}
        values = iter(mg.comp_graph("cpu", options).compile(inputs, nodes)(*arrays))
    return [
        [[next(values) for _ in order] for order in s.results if isinstance(order, list)]
        for s in samples
    ]


class Counts:
    """What became of the comparisons."""

    def __init__(self):
        self.passed = collections.Counter()  # by name, dtype, order and level
        self.refused = collections.Counter()  # samples, by name and reason
        self.wrong = []

    def refuse(self, sample, why):
        self.refused[sample.name, why] += 1

    def fail(self, sample, order, level, why):
        self.wrong.append(f"level {level}: {sample}: {ORDERS[order]}: {why}")
        print("WRONG", self.wrong[-1], flush=True)

    def build(self, samples):
        for sample in samples:
            build(sample)
            for order, results in enumerate(sample.results):
                if isinstance(results, str):
                    self.refuse(sample, results)
                elif isinstance(results, Exception):
                    self.fail(sample, order, "-", f"{type(results).__name__}: {results}")

    def compare(self, samples, level):
        for sample, orders in computed(samples, level):
            if isinstance(orders, mg.GraphError):
                self.refuse(sample, reason(orders))
            elif isinstance(orders, Exception):
                self.fail(sample, 0, level, f"{type(orders).__name__}: {orders}")
            else:
                self._compare(sample, orders, level)

    def _compare(self, sample, orders, level):
        scale = 0.0
        for order, (found, expected) in enumerate(zip(orders, sample.expected, strict=False)):
            if not sample.elementwise or sample.dtype == "float64" or sample.name in FLAT:
                scale = max(scale, largest([wide for wide, _ in expected]))
            for value, (wide, own) in zip(found, expected, strict=True):
                if sample.name in NAN_IN_TORCH:
                    value = np.where(np.isnan(wide), wide.astype(value.dtype), value)
                if sample.name in COARSE_IN_TORCH and sample.dtype == "float64":
                    value, wide, own = (a.astype("float32") for a in (value, wide, own))
                if wrong := difference(value, wide, own, scale):
                    return self.fail(sample, order, level, wrong)
            self.passed[sample.name, sample.dtype, ORDERS[order], level] += 1
        return None

    def record(self, absent):
        """Return the counts as `docs/tables.py` reads them."""
        passed = collections.Counter()
        for (_, dtype, order, level), count in self.passed.items():
            passed[level, dtype, order] += count
        names = {name for name, *_ in self.passed}
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "torch": torch.__version__,
            "compared": sorted(names),
            "absent": sorted(set(absent) - names),
            "passed": [[*key, count] for key, count in passed.items()],
            "refused": [[*key, count] for key, count in self.refused.most_common()],
            "wrong": self.wrong,
        }


# ---------------------------------------------------------------- all of it


def families():
    """Yield for each op and layer its name, its dtypes and what makes samples; None if absent."""
    for op in op_db:
        yield op.name, op.dtypes, ours(op.name) and functools.partial(samples_of_op, op)
    for info in module_db:
        exists = hasattr(nn, info.name.removeprefix("nn."))
        kinds = [*info.dtypes, torch.float16, torch.bfloat16]
        yield info.name, kinds, functools.partial(samples_of_module, info) if exists else None


def counted(names, dtypes, levels, limit=None):
    """Compare what exists here of `names` (none: of all); return the counts, and what is absent."""
    counts, absent = Counts(), []
    for name, kinds, make in families():
        if names and name not in names:
            continue
        if make is None:
            absent.append(name)
            continue
        start = time.monotonic()
        samples = []
        for dtype in dtypes:
            if getattr(torch, dtype) in kinds:
                samples += make(dtype, limit)
        counts.build(samples)
        for level in levels:
            counts.compare(samples, level)
        seconds = time.monotonic() - start
        print(f"{name}: {len(samples)} samples, {seconds:.1f} s", flush=True)
    for info in optim_db:
        name = info.optim_cls.__name__
        if names and f"optim.{name}" not in names:
            continue
        if not hasattr(optim, name):
            absent.append(f"optim.{name}")
            continue
        kinds = {"float32", "float64"}.intersection(dtypes)
        for dtype, level in itertools.product(kinds, set(levels) - {"ops"}):
            trained(info, dtype, level, counts)
    return counts, absent


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="OP")
    parser.add_argument("--levels", nargs="+", default=["0", "3"], choices=LEVELS)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--samples", type=int, help="of each op and dtype at most")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    given = parser.parse_args()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        counts, absent = counted(given.names, given.dtypes, given.levels, given.samples)
    for (name, why), count in sorted(counts.refused.items()):
        print(f"refused {count:6,} {name}: {why}")
    found = counts.record(absent)
    for level, dtype, order, count in found["passed"]:
        print(f"level {level}, {dtype}: {count:,} {order} passed")
    print(f"{len(counts.wrong)} wrong")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
