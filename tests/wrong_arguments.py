"""Calls of everything that users call, and values that they might give in place of an argument.

The calls of functions and classes are those of the examples in their docstrings, so a new one needs
nothing here; `others` has what no example calls.  `variants` replaces each argument, and each
default, by each odd value.
"""

import contextlib
import decimal
import doctest
import fractions
import inspect

import numpy as np

import minigraph as mg
from minigraph import data, nn, ops, optim

X = mg.input("x", (2, 3))
INTEGERS = mg.input("integers", (2, 3), "int64")
LOSS = (X * X).sum()


class Opaque:
    """An object that nothing is known of."""

    def __repr__(self):
        return "<opaque>"


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def circular():
    value = []
    value.append(value)
    return value


ODD = [
    *(None, ..., True, 0, -1, 1, 7, 2**31, 2**62, 2**63, 2**70, -(2**70), 10**400, 10**5000),
    *(0.5, 1e300, float("nan"), float("inf"), 1 + 2j),
    *(decimal.Decimal("0.5"), fractions.Fraction(1, 2)),
    *("", "3", "\ud800", b"3", "y" * 5000),
    *((), (1, 2), (0.5, 2.0), (None, None), ("a", "b"), (-1, -2), (2**40, 2**40)),
    *((1,) * 33, (1,) * 65, [[1], [2, 3]], nested(100), circular(), list(range(5000))),
    *({1, 2}, {"a": 1}, (i for i in ()), range(2), slice(None), int, len, Opaque()),
    *(np.int64(1), np.float32(0.5), np.True_, np.array(1), np.array([1, 2]), np.zeros((0, 3))),
    *(np.zeros((1,) * 33), np.zeros((1,) * 64), np.array(["a", "b"]), np.array([None, 1])),
    *(np.array([1j]), np.array(["2026-11-22"], "datetime64[D]"), np.zeros(2, [("a", "i4")])),
    *(mg.input("y" * 5000, (2, 7)), mg.input("y", ("n" * 5000, 3)), X, LOSS, INTEGERS),
    *(mg.Parameter(np.ones(3, "float32")), nn.ReLU(), ops.relu),
]


# ---------------------------------------------------------------- the calls of examples

PACKAGES = {"mg": mg, "ops": ops, "nn": nn, "nn.init": nn.init, "optim": optim, "data": data}
UNCALLED = {nn.Module, nn.Buffer, optim.Optimizer, data.Dataset}  # by their examples


def documented():
    """Yield the functions and classes that have an example: (package, name, value)."""
    seen = {*UNCALLED}
    for package in PACKAGES.values():
        for name, value in [*vars(package).items()]:
            ours = callable(value) and value.__module__.startswith("minigraph.")
            if ours and name[0] != "_" and ">>> " in (value.__doc__ or "") and value not in seen:
                seen.add(value)
                yield package, name, value


@contextlib.contextmanager
def replaced(owner, name, value):
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def calls_of_example(package, name, function):
    """Return how its example calls a function: [(args, kwargs, operands of the layer it makes)]."""
    made = []
    call_module = nn.Module.__call__

    def call(*args, **kwargs):
        result = function(*args, **kwargs)
        made.append((args, kwargs, result, []))
        return result

    def call_layer(layer, *operands, **options):
        for *_, result, known in made:
            if result is layer:
                known[:] = operands
        return call_module(layer, *operands, **options)

    names = {"np": np, **PACKAGES, "cg": mg.comp_graph("reference"), name: call}
    with (
        replaced(package, name, call),
        replaced(nn.Module, "__call__", call_layer),
        contextlib.redirect_stdout(None),
    ):
        for example in doctest.DocTestParser().get_examples(inspect.getdoc(function)):
            exec(example.source, names)
    return [(args, kwargs, operands) for args, kwargs, _, operands in made]


def by_name(function, args, kwargs):
    """Return the arguments of a call by name, defaults too; where there is a `*args`, by place."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            arguments = dict(enumerate([*arguments.values(), *value]))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    return arguments


def built(layer, operands):
    """Return a function that makes a layer and calls it."""

    def call(*args, **kwargs):
        return layer(*args, **kwargs)(*operands)

    return call


def calls():
    """Yield everything that users call: (its name, the function, its arguments by name)."""
    for package, name, function in documented():
        made = calls_of_example(package, name, function)
        args, kwargs, operands = max(made, key=lambda call: len(call[0]) + len(call[1]))
        fn = built(function, operands) if operands else function
        prefix = next(key for key, value in PACKAGES.items() if value is package)
        yield f"{prefix}.{name}", fn, by_name(function, args, kwargs)
    for fn, kwargs in others():
        yield getattr(fn, "__qualname__", type(fn).__name__), fn, kwargs


def method(name, owner=X):
    """Return the method of an object under a name that says whose it is."""

    def call(*args, **kwargs):
        return getattr(owner, name)(*args, **kwargs)

    call.__qualname__ = f"{type(owner).__name__}.{name}"
    return call


def others():
    """Yield what has no example: (function, arguments by name)."""
    parameter = mg.Parameter(np.ones((2, 3), "float32"), "w")
    yield method("assign", parameter), {"value": np.ones((2, 3), "float32")}
    yield method("rename", parameter), {"name": "p"}
    yield method("reshape"), {0: (3, 2)}
    yield method("transpose"), {0: (1, 0)}
    yield method("transpose"), {0: 1, 1: 0}
    yield method("astype"), {"dtype": "float64"}
    yield method("__getitem__"), {0: 0}
    yield method("__getitem__"), {0: (0, slice(0, 2))}
    yield lambda at: X[:, at:], {"at": 1}
    yield lambda step: X[::step], {"step": 1}
    yield method("__add__"), {0: 1}
    yield method("__rpow__"), {0: 2}
    for name in ("sum", "mean", "max", "min", "prod"):
        yield method(name), {"axis": 1, "keepdims": True}

    linear = nn.Linear(3, 2)
    yield method("train", linear), {"mode": True}
    yield method("load_state_dict", linear), {"state": linear.state_dict(), "strict": True}
    yield nn.Buffer, {"value": 1.0, "name": "b", "dtype": "float32"}
    optimizer = optim.Adam([parameter])
    yield method("minimize", optimizer), {"loss": parameter.sum()}
    yield method("load_state_dict", optimizer), {"state": optimizer.state_dict()}
    yield lambda lr: setattr(optimizer, "lr", lr), {"lr": 0.1}

    cg = mg.comp_graph("reference")
    yield mg.comp_graph, {"device": "cpu", "options": {"seed": 1}}
    yield method("set_option", cg), {"name": "seed", "value": 1}
    yield method("get_option", cg), {"name": "seed"}
    yield method("load_cache", cg), {"path": "absent", "type": "all"}
    arguments = {"inputs": [X], "outputs": [X * 2], "updates": {}, "optimize": False}
    yield method("compile", cg), {**arguments, "cache_dir": None}
    function = cg.compile([X], X * 2)
    yield function, {0: np.ones((2, 3), "float32")}
    yield method("profile", function), {0: np.ones((2, 3), "float32")}

    channels = {"mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0)}
    yield data.CIFAR10, {"directory": "absent", "train": True, "augment": False}
    yield data.ImageFolder, {"directory": "absent", "size": 8, "augment": False, **channels}
    yield data.read_image, {"path": "absent", "size": 8, **channels}
    yield mg.load, {"path": "absent"}
    yield mg.save, {"path": "absent/folder", "state": {"a": np.ones(1)}}


def invoke(function, kwargs):
    """Call a function with arguments by name; those without one, or with a number, by position."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = {}
    positional = {
        name for name, p in parameters.items() if p.kind is inspect.Parameter.POSITIONAL_ONLY
    }
    args = [v for k, v in kwargs.items() if isinstance(k, int) or k in positional]
    named = {k: v for k, v in kwargs.items() if not (isinstance(k, int) or k in positional)}
    return function(*args, **named)


def variants():
    """Yield each call with one argument replaced: (name, argument, value, thunk)."""
    for name, fn, kwargs in calls():
        for argument in kwargs:
            if (name, argument) == ("ops.scan", "body"):
                continue  # what it raises is the user's own: see `tests/ops/test_scan.py`
            for value in ODD:
                changed = {**kwargs, argument: value}
                yield name, argument, value, lambda fn=fn, changed=changed: invoke(fn, changed)
