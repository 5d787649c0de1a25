"""Inputs of elementwise ops, on which the generic tests run.

Their classes say how to draw inputs by `operands`, `accepts`, `domain` and `kinks`; only those with
fields name their instances here.
"""

import itertools
import math

import numpy as np

from minigraph.errors import DTypeError
from minigraph.graph import BOOL, FromSizes, Input, Item, Op, Variable
from minigraph.ops import comparison, elementwise, exponential, random
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.fma import Fma, Fma3, Fma4

F32, F64, I64, U64 = map(np.dtype, ("float32", "float64", "int64", "uint64"))

# Ops without inputs that an array could stand for: their value is given, or they read a bundle.
LEAVES = {Input, Variable, Item, FromSizes}


def registered():
    """The ops of `graph.py` and `minigraph.ops`; what passes and backends add is theirs to test."""
    return {
        name: cls
        for name, cls in Op.registry.items()
        if cls.__module__.startswith(("minigraph.ops", "minigraph.graph")) and cls not in LEAVES
    }


def is_abstract(cls):
    return bool(cls.__subclasses__())


def is_random(op):
    return isinstance(op, random.Random)


SHAPES = [(3, 4), (4,), (3, 1), ()]  # the others broadcast against the first

SIGNS = {"plus": "+", "minus": "-"}


def signed(cls):
    return {f"{p}_{q}": cls(SIGNS[p], SIGNS[q]) for p, q in itertools.product(SIGNS, repeat=2)}


WITH_FIELDS = {
    Fma3: signed(Fma3),
    Fma4: signed(Fma4),
    Fma: signed(Fma),
    exponential.ConstantPow: {
        f"{e:g}".replace(".", "_"): exponential.ConstantPow(e) for e in exponential.PRODUCTS
    },
    elementwise.Astype: {
        d: elementwise.Astype(np.dtype(d))
        for d in ("float32", "float64", "int32", "int64", "uint8", "bool")
    },
    random.RandomUniform: {d.name: random.RandomUniform((3, 4), d) for d in (F32, F64)},
    random.RandomNormal: {d.name: random.RandomNormal((3, 4), d) for d in (F32, F64)},
}


def elementwise_ops():
    """Return {id: op}, every elementwise op with each of its fields' branches."""
    samples = {}
    for cls in registered().values():
        if cls in WITH_FIELDS:
            samples |= {f"{cls.name}-{branch}": op for branch, op in WITH_FIELDS[cls].items()}
        elif issubclass(cls, Elementwise) and not is_abstract(cls):
            samples[cls.name] = cls()
    return samples


ELEMENTWISE = elementwise_ops()


def operand_dtypes(op, dtype):
    """The dtypes of `op`'s inputs where those that may vary are `dtype`."""
    if is_random(op):
        return (U64,) * 3
    if isinstance(op, comparison.Where):
        return BOOL, dtype, dtype
    return (dtype,) * len(op.operands)


def accepts(op, dtype):
    if is_random(op):
        return dtype == U64
    try:
        op.check_kind(dtype)
    except DTypeError:
        return False
    return True


def draw(dtype, size, low, high, seed=0):
    """Random numbers of any dtype: between low and high, where there are integers between them."""
    rng = np.random.default_rng(seed)
    if dtype == BOOL:
        return rng.random(size) < 0.5
    if kind(dtype) == "f":
        return rng.uniform(low, high, size).astype(dtype)
    low = max(math.ceil(low), 0) if kind(dtype) == "u" else math.ceil(low)
    return rng.integers(low, math.floor(high), size, endpoint=True).astype(dtype)


def around_kinks(op, x):
    """`x` with numbers on both sides of each kink of an op in it, if it has room and is a float."""
    sides = [kink + step for kink in op.kinks for step in (-0.5, 0.5)]
    if kind(x.dtype) == "f" and x.size >= len(sides):
        x.flat[: len(sides)] = sides
    return x


def operands(op, dtype):
    """Inputs for an elementwise op, which broadcast."""
    shapes = [()] * 3 if is_random(op) else SHAPES
    return [
        around_kinks(op, draw(d, size, *op.domain, seed))
        for seed, (d, size) in enumerate(zip(operand_dtypes(op, dtype), shapes, strict=False))
    ]


def default_dtype(op):
    if is_random(op):
        return U64
    return F64 if "f" in op.accepts else I64


# ---------------------------------------------------------------- what C has to get right

TINY = {F32: 1e-45, F64: 5e-324}


def specials(dtype):
    """The values at which an expression goes wrong first."""
    if dtype == BOOL:
        return np.array([False, True])
    if kind(dtype) != "f":
        info = np.iinfo(dtype)
        near = [0, 1, 2, 3, 7, info.max // 2, info.max - 1, info.max]
        below = [-1, -2, -3, -7, info.min + 1, info.min] if kind(dtype) == "i" else []
        return np.array(near + below, dtype)
    info = np.finfo(dtype)
    near = [0, TINY[dtype], info.tiny, 0.25, 0.5, 1, 1.5, 2, 2.5, 3, 1e10, info.max, np.inf]
    return np.array([*near, *(-v for v in near), np.nan], dtype)


def at_the_kinks(op, dtype):
    """The kinks of an op but 0, and the numbers next to them, in a float dtype."""
    # Zero is among the specials; next to it are denormals.
    kinks = np.array([kink for kink in op.kinks if kink], dtype)
    return np.concatenate(
        [kinks, np.nextafter(kinks, dtype.type(-9)), np.nextafter(kinks, dtype.type(9))]
    )


def between(x, dtype):
    """Whether floats x, truncated, are among the integers of `dtype`."""
    info = np.iinfo(dtype)
    return (x > float(info.min) - 1) & (x < float(info.max) + 1)


def is_float32(x):
    with np.errstate(over="ignore"):
        return np.isnan(x) | (x.astype(F32) == x)


def defined(op, *xs):
    """Samples on which C expressions agree with NumPy, with the exceptions named in a row."""
    everywhere = np.ones(xs[0].shape, bool)
    if isinstance(op, elementwise.Astype) and kind(xs[0].dtype) == "f" and kind(op.dtype) in "iu":
        return between(xs[0], op.dtype)  # C leaves open what a float out of range becomes
    if op.name == "fma" and xs[0].dtype == F64:
        return is_float32(xs[0]) & is_float32(xs[1])  # NumPy rounds the product unless it is exact
    if op.name == "logaddexp":  # where the larger operand and the rest cancel, roundings are left
        with np.errstate(all="ignore"):
            return ~(np.abs(op.forward(*xs)) < np.abs(np.maximum(*xs)) / 2)
    return everywhere


# Which zero NumPy takes of +0 and -0 is left to the processor.
ANY_ZERO = {"maximum", "minimum", "clip"}


def c_operands(op, dtype):
    """Every combination of special values, numbers from the domain, and numbers of any size."""
    dtypes = operand_dtypes(op, dtype)
    values = [specials(d) for d in dtypes]
    if op.kinks and kind(dtype) == "f":
        values[0] = np.concatenate([values[0], at_the_kinks(op, dtype)])
    grid = np.meshgrid(*values, indexing="ij")
    columns = []
    for seed, d in enumerate(dtypes):
        rng = np.random.default_rng(seed + 10)
        if kind(d) == "f":
            wide = (rng.normal(size=1000) * 10.0 ** rng.uniform(-30, 30, 1000)).astype(d)
        elif d == BOOL:
            wide = rng.random(1000) < 0.5
        else:
            info = np.iinfo(d)
            wide = rng.integers(info.min, info.max, 1000, d, endpoint=True)
        columns.append(np.concatenate([draw(d, 1000, *op.domain, seed), wide]))
    xs = [np.concatenate([g.ravel(), c]) for g, c in zip(grid, columns, strict=True)]
    where = defined(op, *xs)
    return [np.ascontiguousarray(x[where]) for x in xs]


def assert_same(result, want, ulps=4, any_zero=False):
    """Equal to a few units in the last place; NaN, infinities and the signs of zeros alike."""
    assert result.dtype == want.dtype
    if kind(want.dtype) != "f":
        np.testing.assert_array_equal(result, want)
        return
    finite = np.isfinite(want)
    np.testing.assert_array_equal(result[~finite], want[~finite])
    with np.errstate(all="ignore"):
        distance = np.abs(result[finite] - want[finite]) / np.spacing(np.abs(want[finite]))
    assert distance.max(initial=0) <= ulps, (
        result[finite][distance.argmax()],
        want[finite][distance.argmax()],
    )
    if not any_zero:
        zero = (want == 0) & (result == 0)
        np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(want[zero]))
