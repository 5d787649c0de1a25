"""Properties that every op has, checked for every op in the registry; then the public functions."""

import ctypes
import dataclasses
import functools
import inspect
import itertools
import math
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest
from samples import (
    ANY_ZERO,
    ELEMENTWISE,
    LOOPS,
    SAMPLES,
    STRUCTURAL,
    accepts,
    assert_same,
    c_operands,
    integer,
    is_abstract,
    is_random,
    operand_dtypes,
    operands,
    real,
    registered,
    specials,
)

import minigraph as mg
from minigraph import DTypeError, GraphError, ShapeError, ops
from minigraph.devices.cpu import compiler
from minigraph.graph import BFLOAT16, DTYPES, FLOATS, Graph, Op, Spec, constant
from minigraph.graph.builder import builder
from minigraph.jit.c.prelude import vector_math
from minigraph.jit.expression import c_type, expression, stored, support
from minigraph.ops import conv
from minigraph.ops.arithmetic import Pow
from minigraph.ops.elementwise import Elementwise, kind
from minigraph.ops.random import SEED, STEP, number_streams, philox
from minigraph.ops.reduction import Prod
from minigraph.ops.shape import StopGradient

F32, F64, U64 = map(np.dtype, ("float32", "float64", "uint64"))


def inputs_like(xs):
    return tuple(mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs))


def evaluate(fn, *xs):
    """The value of `fn`, a function on expressions, at arrays."""
    inputs = inputs_like(xs)
    y = fn(*inputs)
    results = Graph(inputs, tuple(y) if isinstance(y, list | tuple) else (y,))(*xs)
    return list(results) if isinstance(y, list | tuple) else results[0]


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def forward(op, xs):
    with np.errstate(all="ignore"):
        return as_tuple(op.forward(*xs))


def specs(arrays):
    return tuple(Spec(x.shape, x.dtype) for x in map(np.asarray, arrays))


every_sample = pytest.mark.parametrize(("op", "xs"), SAMPLES.values(), ids=SAMPLES)


# ---------------------------------------------------------------- the registry


def test_every_op_has_a_sample():
    final = {name for name, cls in registered().items() if not is_abstract(cls)}
    assert {type(op).__name__ for op, _ in SAMPLES.values()} == final


def test_no_two_ops_share_a_name():
    def below(cls):
        return {cls}.union(*map(below, cls.__subclasses__()))

    ours = {cls for cls in below(Op) - {Op} if cls.__module__.startswith("minigraph.")}
    assert ours <= set(Op.registry.values())
    assert len({cls.name for cls in registered().values()}) == len(registered())


def test_classes_are_abstract_or_final():
    for cls in registered().values():
        if is_abstract(cls):
            assert "forward" not in vars(cls), f"{cls.__name__} has subclasses and a meaning"
        else:
            assert cls.__dataclass_params__.frozen, f"{cls.__name__} is not a frozen dataclass"
            assert cls.forward is not Op.forward, f"{cls.__name__} has no meaning"


def test_equal_ops_have_equal_hashes_and_text():
    again = dict(SAMPLES)
    for name, (op, _) in SAMPLES.items():
        copy = dataclasses.replace(op)
        assert str(copy) == str(op)
        if op.name != "constant":  # which is told apart by identity
            assert copy == again[name][0]
            assert hash(copy) == hash(op)


# ---------------------------------------------------------------- shapes and dtypes


@every_sample
def test_infer_agrees_with_forward(op, xs):
    assert as_tuple(op.infer(*specs(xs))) == specs(forward(op, xs))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [n for n, op in ELEMENTWISE.items() if not is_random(op)])
def test_elementwise_infer_agrees_with_forward_for_every_dtype(name, dtype):
    op = ELEMENTWISE[name]
    if not accepts(op, dtype):
        with pytest.raises(DTypeError):
            op.infer(*(Spec((), d) for d in operand_dtypes(op, dtype)))
        return
    xs = operands(op, dtype)
    assert (op.infer(*specs(xs)),) == specs(forward(op, xs))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", STRUCTURAL)
def test_structural_infer_agrees_with_forward_for_every_float(name, dtype):
    op, xs = STRUCTURAL[name]
    xs = [x.astype(dtype) if kind(x.dtype) == "f" else x for x in xs]
    assert as_tuple(op.infer(*specs(xs))) == specs(forward(op, xs))


@every_sample
def test_forward_leaves_its_inputs_alone(op, xs):
    before = [x.copy() for x in xs]
    forward(op, xs)
    for x, old in zip(xs, before, strict=True):
        np.testing.assert_array_equal(x, old)


@every_sample
def test_only_views_share_memory_with_their_input(op, xs):
    ys = forward(op, xs)
    if not op.is_view and op.name not in ("copy", "constant"):
        assert not any(np.may_share_memory(x, y) for x in xs for y in ys if x.size and y.size)


def test_samples_lie_on_both_sides_of_every_kink():
    for name, op in ELEMENTWISE.items():
        x = SAMPLES[name][1][0]
        ends = [-np.inf, *op.kinks, np.inf]
        for low, high in itertools.pairwise(ends):
            assert np.any((low < x) & (x < high)), f"{name} has no sample between {low} and {high}"


def test_functions_show_their_operands_and_meaning():
    assert str(inspect.signature(ops.hardswish)) == "(x: 'Operand', /)"
    assert str(inspect.signature(ops.atan2)) == "(y: 'Operand', x: 'Operand', /)"
    assert str(inspect.signature(ops.less)) == "(x: 'Operand', y: 'Operand', /)"
    for op in ELEMENTWISE.values():
        if hasattr(ops, op.name):
            assert getattr(ops, op.name).__name__ == op.name
            assert getattr(ops, op.name).__doc__


# ---------------------------------------------------------------- gradients


def weighted(results):
    """A scalar: the float results, each times random numbers of its shape."""
    return sum(
        ops.sum(y * np.random.default_rng(i).normal(size=y.shape))
        for i, y in enumerate(results)
        if y.dtype == F64
    )


def directional(loss, inputs, directions):
    """The derivative of `loss` when the inputs move in their directions, as an expression."""
    slopes = mg.grad(loss, inputs)
    return sum(ops.sum(g * d) for g, d in zip(slopes, directions, strict=True))


def finite_difference(graph, xs, directions, eps=1e-6):
    def f(step):
        moved = [x if d is None else x + step * d for x, d in zip(xs, directions, strict=True)]
        return graph(*moved)[0]

    return (f(eps) - f(-eps)) / (2 * eps)


def assert_differentiates(op, xs, order):
    if isinstance(op, StopGradient):
        pytest.skip("its gradient is not its derivative, on purpose")
    nodes = inputs_like(xs)
    floats = [i for i, x in enumerate(xs) if x.dtype == F64]
    results = op.results(*nodes)
    if not floats or not any(y.dtype == F64 for y in results):
        pytest.skip("nothing to differentiate")
    wrt = [nodes[i] for i in floats]
    rng = np.random.default_rng(7)
    f = weighted(results)
    for _ in range(order):
        directions = [None] * len(xs)
        for i in floats:
            directions[i] = rng.normal(size=xs[i].shape)
        f, before = directional(f, wrt, [directions[i] for i in floats]), f
    numeric = finite_difference(Graph(nodes, (before,)), xs, directions)
    (analytic,) = Graph(nodes, (f,))(*xs)
    np.testing.assert_allclose(analytic, numeric, rtol=1e-6, atol=1e-6)


@every_sample
def test_grad_agrees_with_finite_differences(op, xs):
    assert_differentiates(op, xs, order=1)


@pytest.mark.parametrize(
    "op",
    [op for op in ELEMENTWISE.values() if op.operands == ("x",) and accepts(op, F64)],
    ids=lambda op: op.name,
)
def test_grad_agrees_over_a_wide_range(op):
    """Also beyond kinks that the class does not name."""
    low, high = (-9.7, 9.3) if op.domain == Elementwise.domain else op.domain
    assert_differentiates(op, [np.linspace(low, high, 400)], order=1)


@every_sample
def test_second_derivative_agrees_with_finite_differences(op, xs):
    assert_differentiates(op, xs, order=2)


PLACES_OF_ZEROS = [[], [0], [1, 2], [1, 5], [0, 2, 7], range(12)]


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("places", PLACES_OF_ZEROS, ids=str)
def test_products_with_zeros_have_derivatives_of_every_order(places, axes, order):
    x = real(3, 4)
    x.flat[list(places)] = 0
    assert_differentiates(Prod(axes), [x], order)


def test_the_derivative_of_a_product_divides_nothing():
    x = np.array([np.inf, 2, 3], F32)
    (dx,) = mg.grad(ops.prod(given := mg.input("x", (3,))), [given])
    np.testing.assert_array_equal(Graph((given,), (dx,))(x)[0], [6, np.inf, np.inf])
    x = np.array([1e-30, 1e-30, 2], F32)
    np.testing.assert_allclose(Graph((given,), (dx,))(x)[0], [2e-30, 2e-30, 0], rtol=1e-6)


EXPANDED = [name for name, (op, _) in SAMPLES.items() if type(op).expand is not Op.expand]


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", EXPANDED)
def test_expand_agrees_with_forward(name, dtype):
    op, xs = SAMPLES[name]
    xs = [x if name in LOOPS else x.astype(dtype) for x in xs]
    nodes = inputs_like(xs)
    graph = Graph(nodes, op.expand(*nodes))
    graph.check()
    tolerance = 1e-12 if dtype == F64 else 2e-6
    for got, want in zip(graph(*xs), forward(op, xs), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_ops_with_expand_exist():
    assert len(EXPANDED) > 5


# ---------------------------------------------------------------- C expressions

C_DTYPES = ("float32", "float64", "int32", "int64", "uint64", "uint8", "bool")
C_FLAGS = {"plain": lambda: ["-O2", "-fno-math-errno"], "vector": compiler.flags}
C_LIBRARIES = {"plain": ["-lm"], "vector": ["-lmvec", "-lm"] if vector_math() else ["-lm"]}
C_CASES = [
    pytest.param(name, dtype, id=f"{name}-{dtype}")
    for name, op in ELEMENTWISE.items()
    for dtype in C_DTYPES
    if accepts(op, np.dtype(dtype))
]


def c_name(name):
    return f"k_{name}".replace("-", "_")


def c_source(dtype, how):
    """All kernels whose operands are of one dtype: what they call, once each, then a loop each."""
    called, kernels = {}, []
    for name, op in ELEMENTWISE.items():
        if not accepts(op, dtype):
            continue
        dtypes = operand_dtypes(op, dtype)
        result = op.infer(*(Spec((), d) for d in dtypes)).dtype
        called.update(dict.fromkeys(support(op, dtypes, result)))
        params = [f"const {c_type(d)} *x{k}" for k, d in enumerate(dtypes)]
        value = expression(op, dtypes, result, [f"x{k}[i]" for k in range(len(dtypes))])
        kernels.append(
            f"void {c_name(name)}(int64_t n, {c_type(result)} *y, {', '.join(params)}) {{\n"
            f"  for (int64_t i = 0; i < n; i++) y[i] = {stored(result, value)};\n}}"
        )
    head = ["#include <math.h>", "#include <stdint.h>", vector_math() if how == "vector" else ""]
    return "\n".join([*head, *called, *kernels])


@pytest.fixture(scope="session")
def c_library(tmp_path_factory):
    """A function: dtype, how -> the library of its kernels, compiled at the first call."""
    if not shutil.which("cc"):
        pytest.skip("no C compiler")

    @functools.cache
    def build(dtype, how):
        folder = tmp_path_factory.mktemp("c")
        (folder / "k.c").write_text(c_source(np.dtype(dtype), how))
        command = [
            "cc",
            *C_FLAGS[how](),
            "-shared",
            "-fPIC",
            "k.c",
            "-o",
            "k.so",
            *C_LIBRARIES[how],
        ]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return ctypes.CDLL(str(folder / "k.so"))

    return build


@pytest.mark.parametrize(("name", "dtype"), C_CASES)
def test_c_agrees_with_forward(name, dtype, c_library):
    op = ELEMENTWISE[name]
    if is_random(op):  # of three numbers and the element's index
        numbers = np.array([2**40 + 7, 2**33 + 5, 3], np.uint64)
        xs = [np.full(op.shape, v) for v in numbers]
        (want,) = forward(op, numbers)
    else:
        xs = c_operands(op, np.dtype(dtype))
        (want,) = forward(op, xs)
    for how in C_FLAGS:
        got = np.empty_like(want)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (got, *xs)]
        c_library(dtype, how)[c_name(name)](ctypes.c_int64(got.size), *pointers)
        assert_same(got, want, any_zero=op.name in ANY_ZERO)


# ---------------------------------------------------------------- convolutions


def pairs_that_meet(conv, x, w, y):
    """Yield the indices of pixels, weights and results that meet, one after the other."""
    (n, _, height, width), (k, c, r, s) = x.shape, w.shape
    sides = zip(conv.stride, conv.padding, conv.dilation, strict=True)
    (t, p, d), (u, q, e) = sides
    for image, out, ch, i, j, a, b in np.ndindex(n, k, c, *y.shape[2:], r, s):
        row, column = i * t - p + a * d, j * u - q + b * e
        if 0 <= row < height and 0 <= column < width:
            channel = ch + out // (k // conv.groups) * c
            yield (image, channel, row, column), (out, ch, a, b), (image, out, i, j)


PADDED = {
    "same": ((2, 2, 4, 3), (2, 2, 3, 3), conv.Conv2d(padding=(1, 1))),
    "stride": ((1, 2, 5, 6), (2, 2, 3, 2), conv.Conv2d((2, 3), (1, 1))),
    "dilation": ((1, 1, 5, 4), (2, 1, 3, 3), conv.Conv2d((1, 2), (2, 2), (2, 2))),
    "groups": ((1, 4, 3, 4), (4, 2, 2, 3), conv.Conv2d(padding=(1, 2), groups=2)),
    "padding beyond the window": ((1, 1, 2, 2), (1, 1, 2, 2), conv.Conv2d(padding=(3, 3))),
    "none": ((2, 2, 4, 3), (2, 2, 3, 3), conv.Conv2d()),
}


@pytest.mark.parametrize("values", ["real", "special"])
@pytest.mark.parametrize(("x", "w", "op"), PADDED.values(), ids=PADDED)
def test_padding_takes_no_part_in_a_convolution(x, w, op, values):
    x, w = real(*x), real(*w, seed=1)
    dy = real(*op.infer(*specs([x, w])).shape, seed=2)
    if values == "special":
        for v in (x, w, dy):
            v.flat[0], v.flat[-1], v.flat[v.size // 2] = np.inf, np.nan, -np.inf
    y, dx, dw = np.zeros_like(dy), np.zeros_like(x), np.zeros_like(w)
    with np.errstate(all="ignore"):
        for pixel, weight, result in pairs_that_meet(op, x, w, dy):
            y[result] += x[pixel] * w[weight]
            dx[pixel] += dy[result] * w[weight]
            dw[weight] += dy[result] * x[pixel]
    for way, xs, want in (
        (op, [x, w], y),
        (conv.Conv2dBackwardData(op, x.shape), [dy, w], dx),
        (conv.Conv2dBackwardWeights(op, w.shape), [dy, x], dw),
    ):
        np.testing.assert_allclose(*forward(way, xs), want, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------- powers

EXPONENTS = [*(n / 2 for n in range(-5, 8)), np.inf, -np.inf, np.nan]


def powers_one_by_one(x):
    """x to each of EXPONENTS: NumPy takes a root instead where an array has one exponent."""
    with np.errstate(all="ignore"):
        return [np.power(x, np.full_like(x, e)) for e in EXPONENTS]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_power_does_not_depend_on_how_its_exponent_is_repeated(dtype):
    with np.errstate(over="ignore"):
        x = specials(F64 if dtype == F64 else F32).astype(dtype)
    for exponent, want in zip(EXPONENTS, powers_one_by_one(x), strict=True):
        for y in (np.array(exponent, dtype), np.full(x.shape, exponent, dtype)):
            (got,) = forward(Pow(), [x, y])
            wide, near = got.astype(F64), 4 * float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(wide, want.astype(F64), rtol=near)
            zero = want == 0
            np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("level", range(4))
def test_powers_of_special_values_are_the_same_at_every_level(device, level):
    large = np.abs(specials(F32)) >= np.finfo(F32).tiny  # programs flush denormals to zero
    x = specials(F32)[large | ~np.isfinite(specials(F32)) | (specials(F32) == 0)]
    given = mg.input("x", x.shape)
    ys = [given**exponent for exponent in EXPONENTS]
    function = mg.comp_graph(device, {"graph_opt_level": level}).compile([given], ys)
    for got, want in zip(function(x), powers_one_by_one(x), strict=True):
        kept = (np.abs(want) >= np.finfo(F32).tiny) | (want == 0) | ~np.isfinite(want)
        assert_same(got[kept], want[kept])


# ---------------------------------------------------------------- public functions like NumPy's

ARRAYS = {
    "x": real(2, 3, 4),
    "y": real(2, 3, 4, low=0.5, seed=1),
    "m": real(3, 1, seed=2),
    "v": real(4, seed=3),
    "w": real(3, seed=4),
    "a": real(2, 4, 3, seed=5),
    "s": real(seed=6),
    "e": real(0, 3),
    "one": real(1, 3, 1),
    "i8": integer(2, 3, low=-100, high=100).astype(np.int8),
    "u8": integer(2, 3, low=1, high=200).astype(np.uint8),
    "i": integer(2, 3, low=-9, high=9),
    "b": integer(2, 3, high=2).astype(bool),
    "tie": np.array([[1.0, 3, 3], [np.nan, 5, 1]]),
}
CALLS = """
sum(x)
sum(x, axis=-1)
sum(x, axis=(0, -1))
sum(x, axis=())
sum(x, axis=1, keepdims=True)
sum(x, keepdims=True)
sum(s)
sum(e)
sum(e, axis=0)
sum(i8)
sum(u8, axis=0)
sum(b, axis=-1)
prod(x, axis=(1, 2), keepdims=True)
prod(e)
prod(i8, axis=1)
prod(b)
max(x)
max(x, axis=(-3, 2))
max(tie, axis=1)
max(e, axis=1)
max(b, axis=0)
min(x, axis=-2, keepdims=True)
min(u8)
mean(x)
mean(x, axis=(0, 2), keepdims=True)
mean(i8, axis=0)
mean(b)
var(x)
var(x, axis=-1, correction=1)
var(x, axis=(0, 1), correction=0.5, keepdims=True)
var(i)
argmax(x)
argmax(x, axis=-1)
argmax(x, axis=1, keepdims=True)
argmax(x, keepdims=True)
argmax(tie, axis=1)
x.sum(1)
x.mean((0, 1), keepdims=True)
x.max(-1)
x.min()
x.prod(axis=2)
x + m
x - v
m * v
s / x
x + 1
2 - x
3 * x
1 / y
x // y
x % y
7 // y
7 % y
i // 3
i % -3
i // 0 * 0
y ** 2
y ** x
y ** -0.5
2 ** x
i ** 2
-x
+x
abs(x)
x < v
x <= 0
0 < x
x >= m
x == x
x != v
i & 3
i | i8
5 ^ i
~i
~b
b & (i > 0)
b | False
u8 + 1
u8 * 2.0
i8 / u8
b + b
b * 2
v @ v
x @ a
x @ v
w @ x
m @ reshape(v, (1, 4))
x[0] @ a[0]
stack([x, x]) @ a
x @ a[:1]
i8 @ u8.T
e.T @ e
b @ b.T
x[:, :, :0] @ v[:0]
x[:, :, :0] @ a[0, :0]
x[:0] @ a[0]
x[:, :0] @ a[0]
v[:0] @ e.T[:0]
matmul(x, a)
x[0]
x[-1, 1]
x[..., -2]
x[:, None, 1:, ::2]
x[::-1]
x[:, ::-2, 3:0:-2]
x[1, ..., None, None]
x[()]
x[...]
x[5:]
x[:, 2:1]
x[-99:99, -2:]
x[None]
s[None, ...]
s[()]
e[:, 1]
e[::-1]
x.T
x.reshape(4, 6)
x.reshape((2, -1))
x.reshape(-1)
x.transpose()
x.transpose(1, 2, 0)
x.transpose((0, 2, 1))
x.astype("float32")
i8.astype("bool")
reshape(x, (3, -1, 2))
reshape(s, (1, 1))
reshape(e, (-1, 3))
reshape(e, (3, 0))
permute_dims(x, (2, 0, 1))
permute_dims(x, (-1, 0, -2))
broadcast_to(m, (2, 3, 4))
broadcast_to(s, (2, 2))
broadcast_to(e, (2, 0, 3))
concat([x, y])
concat([x, y], axis=-1)
concat([x, v], axis=None)
concat([x])
concat([i8, i], axis=1)
concat([u8, b])
concat([e, i])
concat(x)
stack([x, y])
stack([x, y], axis=-1)
stack([x, y], axis=2)
stack([s, s])
stack(x)
split(x, 3, axis=1)
split(x, [1, 3], axis=-1)
split(x, [3, 1], axis=2)
split(x, [], axis=0)
split(x, [9], axis=1)
split(x, 2)
pad(x, 1)
pad(v, (1, 2))
pad(x, ((1, 0), (0, 2), (1, 1)), constant_values=3)
pad(x, ((2,), (0,), (1,)))
pad(e, 1)
pad(i8, 1, constant_values=-3)
flip(x)
flip(x, axis=1)
flip(x, axis=(0, -1))
take(x, i % 3, axis=1)
take(x, i % 2, axis=-3)
take(v, i % 4)
take(x, i % 24)
take(x, -1, axis=-1)
take_along_axis(i8, i % 3, axis=1)
take_along_axis(i8, -(i % 2) - 1, axis=0)
take_along_axis(i8, (i % 3)[:, :1], axis=-1)
take(v, (i % 4).astype("uint64"))
squeeze(one)
squeeze(one, axis=0)
squeeze(one, axis=(0, -1))
expand_dims(x, axis=-1)
expand_dims(x, axis=(0, 2))
expand_dims(s, axis=0)
where(b, i, 0)
where(b, 1.5, i)
where(x > 0, x, v)
clip(x, -1, 1)
clip(x, min=0)
clip(x, max=m)
clip(x, v, m)
clip(x, 2, 1)
clip(i8, -5, 5)
clip(i8, min=0)
clip(u8, 0, 100)
maximum(x, v)
minimum(tie, 2)
logaddexp(x, v)
atan2(x, y)
atan2(0.0, x)
copysign(x, y - 1)
copysign(i, -0.5)
hypot(x, y)
hypot(i, 2)
nextafter(x, y)
signbit(x - 1)
bitwise_left_shift(i, 3)
bitwise_left_shift(u8, 1)
bitwise_right_shift(i8, 2)
i << 2
i >> 1
1 << u8 // 40
sign(x)
round(x * 10)
round(2.5 + i)
floor(i8)
trunc(x)
ceil(x)
isnan(tie)
isinf(tie / 0)
isfinite(tie)
logical_and(x, b[0, 0])
logical_not(i)
logical_xor(i, b)
positive(i8)
square(i8)
reciprocal(y)
zeros((2, 3), "float32")
ones(3, "int8")
full((2, 3), i8 == 0)
full((2, 3), 7)
full(2, 1, dtype="bool")
zeros_like(i8)
ones_like(x, dtype="bool")
full_like(x, v)
arange(5)
arange(2, 11, 3)
arange(5, 1, -2)
arange(0, 1, 0.25, dtype="float64")
arange(3, dtype="uint8")
linspace(-1, 2, 7, dtype="float64")
linspace(0, 1, 4, endpoint=False, dtype="float64")
linspace(0, 1, 0, dtype="float64")
linspace(-1, 1, 4, dtype="int64")
eye(3, dtype="float64")
eye(2, 4, k=1, dtype="int64")
eye(4, 2, k=-9, dtype="bool")
tril(x)
tril(x, k=-1)
tril(b)
triu(x, k=1)
triu(i8, k=-1)
tile(x, 2)
tile(v, (2, 1, 3))
tile(x, (2, 0))
tile(s, 3)
repeat(x, 2)
repeat(x, 3, axis=1)
repeat(x, 0, axis=-1)
roll(x, 2)
roll(x, -1, axis=1)
roll(x, (1, -5), axis=(0, 2))
roll(x, 1, axis=(0, 1))
roll(e, 1, axis=0)
moveaxis(x, 0, -1)
moveaxis(x, (0, 2), (1, 0))
swapaxes(x, 0, -1)
matrix_transpose(x)
unstack(x)
unstack(x, axis=1)
unstack(e)
vecdot(x, v)
vecdot(x, y, axis=-2)
outer(v, w)
outer(w, i[0])
tensordot(x, a, axes=0)
tensordot(x, a, axes=((1, 2), (2, 1)))
tensordot(x, v, axes=1)
tensordot(x, y, axes=3)
tensordot(x, w, axes=([1], [0]))
tensordot(x, w, axes=(1, 0))
einsum("bij,bjk->bik", x, a)
einsum("bij,bjk->ki", x, a)
einsum("bij,bjk", x, a)
einsum("bij->jb", x)
einsum("bij->", x)
einsum("ba", x[0])
einsum("i,j->ij", v, w)
einsum("i,i", v, v)
einsum("bij,bij->b", x, y)
einsum("bij,j,i->b", x, v, w)
einsum("...j,j->...", x, v)
einsum("...ij,...jk", x, a[:1])
einsum("i...->...", x)
einsum("b...j, b...j -> b...", x, y)
einsum("...,...->...", x, v)
einsum("ij,jk->ik", i, i.T)
std(x)
std(x, axis=(0, 2), correction=1, keepdims=True)
std(i)
any(x > 1.5, axis=1)
any(b)
any(e, axis=0)
all(x > -1.9, axis=-1, keepdims=True)
all(i)
all(e)
all(tie)
count_nonzero(i)
count_nonzero(b, axis=0)
count_nonzero(x, axis=(0, 1), keepdims=True)
argmin(x)
argmin(i8, axis=1)
argmin(u8, axis=0, keepdims=True)
argmin(b, axis=1)
argmin(tie, axis=0)
diff(x)
diff(x, axis=0)
diff(x, axis=1, n=2)
diff(v, n=9)
diff(b)
diff(i8)
cumsum(x)
cumsum(x, axis=1)
cumsum(i8, axis=0)
cumsum(u8)
cumsum(b, axis=-1)
cumsum(x, axis=0, dtype="float32")
cumsum(e, axis=0)
cumsum(tie, axis=1)
cumprod(x, axis=-1)
cumprod(i8, axis=1)
cumprod(tie)
cumulative_sum(v)
cumulative_sum(x, axis=1, include_initial=True)
cumulative_prod(x, axis=2)
cumulative_prod(i, axis=0, include_initial=True)
exp(i8)
exp(i)
sqrt(u8)
log(u8)
cos(b)
"""


@pytest.mark.parametrize("call", CALLS.strip().splitlines())
def test_functions_agree_with_numpy(call):
    used = {name: x for name, x in ARRAYS.items() if name in compile(call, "", "eval").co_names}
    inputs = {name: mg.input(name, x.shape, x.dtype) for name, x in used.items()}
    got = eval(call, {**vars(ops), **inputs})
    single = not isinstance(got, list)
    nodes = (got,) if single else tuple(got)
    got = Graph(tuple(inputs.values()), nodes)(*used.values())
    with np.errstate(all="ignore"):
        want = eval(call, {**vars(np), **used})
    want = [want] if single else want
    assert len(got) == len(want)
    for node, g, w in zip(nodes, got, map(np.asarray, want), strict=True):
        assert (node.shape, node.dtype) == (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=1e-13, atol=1e-13)


NUMPY_DTYPES = [d for d in DTYPES if d != BFLOAT16]


@pytest.mark.parametrize("left", NUMPY_DTYPES, ids=str)
def test_dtypes_promote_as_in_numpy(left):
    x = mg.input("x", (2,), left)
    for right in NUMPY_DTYPES:
        want = np.result_type(left, right)
        assert ops.maximum(x, mg.input("y", (), right)).dtype == want
        assert ops.maximum(np.zeros((), right), x).dtype == want
        assert ops.concat([x, mg.input("y", (3,), right)]).dtype == want
        angle = np.arctan2(np.ones(2, left), np.ones(2, right))
        assert ops.atan2(x, mg.input("y", (2,), right)).dtype == angle.dtype


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("number", [True, 2, 2.5, float("nan"), np.float32(1), np.int16(1)])
def test_numbers_promote_as_in_numpy(number, dtype):
    x = mg.input("x", (2,), dtype)
    assert ops.maximum(x, number).dtype == np.result_type(dtype, number)
    assert ops.maximum(number, x).dtype == np.result_type(dtype, number)
    assert ops.hypot(x, number).dtype == np.hypot(np.ones(2, dtype), number).dtype


def test_bfloat16_wins_over_integers_and_numbers_and_yields_to_wider_floats():
    x = mg.input("x", (2,), "bfloat16")
    for dtype in NUMPY_DTYPES:
        want = BFLOAT16 if kind(dtype) != "f" else np.result_type(np.float32, dtype)
        assert ops.maximum(x, mg.input("y", (), dtype)).dtype == want
    for number in (True, 2, 2.5):
        assert ops.maximum(x, number).dtype == BFLOAT16
    for fn in (ops.exp, ops.mean, ops.softmax, ops.negative):
        assert fn(x).dtype == BFLOAT16


# By the Array API standard integers have no reciprocal, and NumPy has a square of bools alone.
NOT_NUMPYS = {"reciprocal": "iub", "square": "b"}


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted({op.name for op in ELEMENTWISE.values()} & set(vars(np))))
def test_elementwise_results_have_numpys_dtype(name, dtype):
    ours, theirs = getattr(ops, name), getattr(np, name)
    arity = len(operand_dtypes(ELEMENTWISE.get(name), dtype)) if name in ELEMENTWISE else 1
    if name in ("astype", "where", "clip") or kind(dtype) in NOT_NUMPYS.get(name, ""):
        pytest.skip("not a function of operands of one dtype, or another one than NumPy's")
    try:
        found = ours(*[mg.input("x", (2,), dtype)] * arity).dtype
    except DTypeError:
        return  # NumPy takes more
    with np.errstate(all="ignore"):
        assert found == theirs(*[np.ones(2, dtype)] * arity).dtype


def test_one_hot_is_a_row_of_the_identity():
    labels = np.array([[2, 0], [1, 1]])
    got = evaluate(lambda i: ops.one_hot(i, 3), labels)
    np.testing.assert_array_equal(got, np.eye(3)[labels])
    assert got.dtype == np.int64
    assert ops.one_hot(labels, 3, "float32").dtype == F32


def test_slice_cuts_the_leading_axes():
    x = ARRAYS["x"]
    for args, want in [
        ((1, 2), x[1:2]),
        ((0, -1), x[0:-1]),
        (((0, 1), (2, 3)), x[0:2, 1:3]),
        ((0, 4, (1, 2, 3)), x[0:4:1, 0:4:2, 0:4:3]),
        (((1, 2, 3), 0, -1), x[1:0:-1, 2:0:-1, 3:0:-1]),
    ]:
        np.testing.assert_array_equal(evaluate(lambda x, args=args: ops.slice(x, *args), x), want)


def test_mean_and_variance_of_float16_do_not_overflow():
    x = np.full(4096, 100, np.float16)
    x[::2] = -300
    assert evaluate(ops.mean, np.full(4096, 100, np.float16)) == 100
    assert evaluate(ops.var, x) == 40000


# Of functions of float16 that need more than its range or precision on the way; an input for each.
ROW = np.array([[1000, -1000, 3, 5], [300, 280, -310, 200], [1, 2, 3, 4]], np.float16)
NEAR = (2048 + 2 * np.arange(12).reshape(3, 4)).astype(np.float16)
WIDE = {
    "layer_norm": (lambda x: ops.layer_norm(x, (4,)), ROW),
    "layer_norm with weights": (lambda x: ops.layer_norm(x, (4,), x[2], x[2]), ROW),
    "layer_norm of near numbers": (lambda x: ops.layer_norm(x, (4,)), NEAR),
    "var": (lambda x: ops.var(x, 1) / 1000, ROW / 10),
    "var of near numbers": (lambda x: ops.var(x, 1), NEAR),
    "logsumexp": (ops.logsumexp, np.zeros(100_000, np.float16)),
    "softmax": (lambda x: ops.softmax(x, 1), ROW / 8),
    "log_softmax": (lambda x: ops.log_softmax(x, 1), ROW / 8),
    "mse_loss": (lambda x: ops.mse_loss(x, x[::-1]) / 1000, ROW / 4),
    "local_response_norm": (lambda x: ops.local_response_norm(x[None], 2, 0.1, 0.75, 1.0), ROW),
    "batch_norm": (lambda x: ops.batch_norm_with_statistics(x)[0], ROW / 10),
    "prod": (lambda x: ops.prod(x, 1), np.array([[300, 300, 1e-3, 1e-2]], np.float16)),
    "avg_pool2d": (lambda x: ops.avg_pool2d(x, 8, 1), np.full((1, 1, 9, 9), 2000, np.float16)),
    "max_pool2d": (lambda x: ops.max_pool2d(x, 4, 1), np.eye(7, dtype=np.float16)[None, None]),
    "take": (lambda x: ops.take(x, np.zeros(5000, int), 0), ROW),
    "softplus": (ops.softplus, np.linspace(-16, 24, 81, dtype=np.float16)),
    "sigmoid": (ops.sigmoid, np.linspace(-16, 16, 65, dtype=np.float16)),
    "silu": (ops.silu, np.linspace(-16, 16, 65, dtype=np.float16)),
}


@pytest.mark.parametrize("gradient", [False, True], ids=["value", "gradient"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("name", WIDE)
def test_floats_of_16_bits_are_reduced_in_float32(name, dtype, gradient):
    fn, x = WIDE[name]
    x = x.astype(dtype)

    def computed(x):
        y = fn(x)
        weights = (np.arange(y.size) ** 2 % 11 + 1).reshape(y.shape) / 8
        return mg.grad(ops.sum(y * weights.astype(x.dtype)), [x])[0] if gradient else y

    with np.errstate(under="ignore"):
        got, want = evaluate(computed, x), evaluate(computed, x.astype(F64))
    assert got.dtype == dtype
    eps = float(ml_dtypes.finfo(dtype).eps)
    near = 8 * eps * np.abs(want).max()
    np.testing.assert_allclose(got.astype(F64), want, rtol=8 * eps, atol=near)


def normal_tail(x):
    """Return the normal distribution function, to the last bits of float64."""
    return np.array([0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x])


def sigmoid_tail(x):
    return 1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("form", "tail"), [("none", normal_tail), ("tanh", sigmoid_tail)])
def test_gelu_is_as_accurate_in_its_tail_as_anywhere(form, tail, device, level):
    x = np.linspace(-8, 8, 1601, dtype=F32)
    given = mg.input("x", x.shape)
    function = mg.comp_graph(device, {"graph_opt_level": level}).compile(
        [given], ops.gelu(given, form)
    )
    wide = x.astype(F64)
    np.testing.assert_allclose(function(x), wide * tail(wide), rtol=3e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("fn", [ops.expm1, ops.elu])
def test_the_gradient_of_expm1_is_as_accurate_in_its_tail_as_anywhere(fn, dtype):
    x = np.linspace(-9, -0.5, 100).astype(dtype)
    given = mg.input("x", x.shape, dtype)
    (slope,) = Graph((given,), tuple(mg.grad(fn(given).sum(), [given])))(x)
    eps = float(ml_dtypes.finfo(x.dtype).eps)
    np.testing.assert_allclose(slope.astype(F64), np.exp(x.astype(F64)), rtol=2 * eps)


def test_fma_rounds_once():
    x = np.array([1 + 2**-12, 2.0**-80], F32)
    got = evaluate(lambda x: ops.fma(x, x, np.array([-1 - 2.0**-11, 0], F32)), x)
    np.testing.assert_array_equal(got, np.array([2.0**-24, 0], got.dtype))
    assert ops.fma(mg.input("x", (2,)), 2, 1).dtype == F32


# ---------------------------------------------------------------- empty batches

EMPTY = [
    lambda x: ops.relu(x * 2 + x[:, :1]),
    lambda x: ops.conv2d(x, real(5, 3, 2, 2), real(5), padding=1),
    lambda x: ops.max_pool2d(x, 2, ceil_mode=True, padding=1),
    lambda x: ops.avg_pool2d(x, 2, stride=1),
    lambda x: ops.adaptive_avg_pool2d(x, 2),
    lambda x: ops.adaptive_avg_pool2d(x, 3),
    lambda x: ops.batch_norm(x, real(3), real(3) ** 2),
    lambda x: ops.layer_norm(x, (4, 5)),
    lambda x: ops.local_response_norm(x, 3),
    lambda x: ops.linear(ops.reshape(x, (0, 60)), real(2, 60), real(2)),
    lambda x: x @ real(5, 2),
    lambda x: ops.softmax(x),
    lambda x: ops.log_softmax(x, 1),
    lambda x: ops.max(x, 1) + ops.min(x, (1, 2), keepdims=True)[:, 0] + ops.prod(x, 1),
    lambda x: ops.mean(x, (1, 2)) + ops.var(x, (1, 2)),
    lambda x: ops.logsumexp(x, -1),
    lambda x: ops.take(x, [[1, 0]], 1),
    lambda x: ops.concat([x, x]),
    lambda x: ops.flip(ops.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0))))[:, ::2],
    lambda x: ops.gelu(ops.permute_dims(x, (3, 1, 2, 0))),
    lambda x: sum(ops.split(x, 3, 1)),
]


@pytest.mark.parametrize("fn", EMPTY)
def test_an_empty_batch_gives_empty_results_and_gradients(fn):
    x = mg.input("x", (0, 3, 4, 5), "float64")
    y = fn(x)
    (dx,) = mg.grad(ops.sum(y), [x])
    graph = Graph((x,), (y, dx))
    graph.check()
    values = graph(np.zeros(x.shape))
    assert [v.shape for v in values] == [y.shape, x.shape]
    assert not y.size


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ops.mean(x),
        lambda x: ops.var(x, 0),
        lambda x: ops.max(x, 0),
        lambda x: ops.argmax(x),
        lambda x: ops.batch_norm(x, None, None, training=True),
        lambda x: ops.cross_entropy(x, np.zeros((0, 5), int)),
        lambda x: ops.mse_loss(x, x),
        lambda x: ops.softmax(x, 0),
    ],
)
def test_an_empty_batch_is_an_error_where_there_is_no_answer(fn):
    with pytest.raises(GraphError, match=rf"test_ops.py:{fn.__code__.co_firstlineno}"):
        fn(mg.input("x", (0, 3, 5)))


# ---------------------------------------------------------------- errors

X = mg.input("x", (2, 3))
I = mg.input("i", (2, 3), "int32")  # noqa: E741
IMAGE = mg.input("image", (1, 3, 4, 4))

ERRORS = [
    (ShapeError, "add", lambda: X + np.ones(4)),
    (ShapeError, "add", lambda: ops.add(X, ops.reshape(X, (3, 2)))),
    (DTypeError, "add", lambda: I + 2**40),
    (DTypeError, "add", lambda: X + "text"),
    (DTypeError, "subtract", lambda: (X > 0) - (X < 0)),
    (DTypeError, "bitwise_and", lambda: X & X),
    (DTypeError, "bitwise_invert", lambda: ~X),
    (DTypeError, "clip", lambda: ops.clip(X > 0, 0, 1)),
    (DTypeError, "where", lambda: ops.where(X, X, X)),
    (ShapeError, "where", lambda: ops.where(X > 0, X, np.ones(2))),
    (DTypeError, "astype", lambda: X.astype("complex64")),
    (DTypeError, "astype", lambda: X.astype("nonsense")),
    (ShapeError, "matmul", lambda: X @ X),
    (ShapeError, "matmul", lambda: X @ 2.0),
    (ShapeError, "matmul", lambda: ops.matmul(np.ones((2, 4, 3)), np.ones((3, 3, 4)))),
    (ShapeError, "linear", lambda: ops.linear(X, np.ones(3))),
    (ShapeError, "linear", lambda: ops.linear(X, np.ones((5, 3)), np.ones(4))),
    (ShapeError, "sum", lambda: X.sum(2)),
    (ShapeError, "sum", lambda: X.sum((0, -2))),
    (ShapeError, "sum", lambda: X.sum("columns")),
    (ShapeError, "max", lambda: ops.max(X[:0])),
    (ShapeError, "argmax", lambda: ops.argmax(X[:, :0], 1)),
    (ShapeError, "mean", lambda: X[:0].mean()),
    (ShapeError, "var", lambda: ops.var(X, 0, correction=2)),
    (ShapeError, "reshape", lambda: X.reshape(4)),
    (ShapeError, "reshape", lambda: X.reshape(-1, 4)),
    (ShapeError, "reshape", lambda: X.reshape(-1, -1)),
    (ShapeError, "reshape", lambda: X.reshape(-2, -3)),
    (ShapeError, "reshape", lambda: X.reshape(2.0, 3)),
    (ShapeError, "permute_dims", lambda: X.transpose(0, 0)),
    (ShapeError, "permute_dims", lambda: ops.permute_dims(X, (0, 1, 2))),
    (ShapeError, "broadcast_to", lambda: ops.broadcast_to(X, (2, 4))),
    (ShapeError, "broadcast_to", lambda: ops.broadcast_to(X, (3,))),
    (ShapeError, "squeeze", lambda: ops.squeeze(X, 0)),
    (ShapeError, "expand_dims", lambda: ops.expand_dims(X, 4)),
    (ShapeError, "concat", lambda: ops.concat([X, X], 2)),
    (ShapeError, "concat", lambda: ops.concat([X, X[0]])),
    (ShapeError, "concat", lambda: ops.concat([X, X[:, :2]])),
    (GraphError, "concat", lambda: ops.concat([])),
    (ShapeError, "stack", lambda: ops.stack([X, X[0]])),
    (GraphError, "stack", lambda: ops.stack([])),
    (ShapeError, "split", lambda: ops.split(X, 2, 1)),
    (ShapeError, "split", lambda: ops.split(X, 0)),
    (ShapeError, "slice", lambda: ops.slice(X, (0, 0, 0), (1, 1, 1))),
    (ShapeError, "slice", lambda: ops.slice(X, 0, 1, 0)),
    (ShapeError, "getitem", lambda: X[2]),
    (ShapeError, "getitem", lambda: X[0, 0, 0]),
    (ShapeError, "getitem", lambda: X[..., ...]),
    (ShapeError, "getitem", lambda: X[::0]),
    (GraphError, "getitem", lambda: X[X > 0]),
    (GraphError, "getitem", lambda: X[True]),
    (GraphError, "getitem", lambda: X[{0}]),
    (GraphError, "getitem", lambda: X[[True, False]]),
    (DTypeError, "getitem", lambda: X[[0.5]]),
    (DTypeError, "getitem", lambda: X[X]),
    (ShapeError, "getitem", lambda: X[[0, 2]]),
    (ShapeError, "getitem", lambda: X[:, [0, -4]]),
    (ShapeError, "getitem", lambda: X[2, [0, 1]]),
    (ShapeError, "getitem", lambda: X[[0], [1], [0]]),
    (ShapeError, "getitem", lambda: X[[0, 1], [0, 1, 2]]),
    (GraphError, "index_put", lambda: ops.index_put(X, [], 1)),
    (GraphError, "index_put", lambda: ops.index_put(X, I, 1)),
    (ShapeError, "index_put", lambda: ops.index_put(X, ([0], [1], [0]), 1)),
    (ShapeError, "index_put", lambda: ops.index_put(X, ([0],), X)),
    (DTypeError, "index_put", lambda: ops.index_put(I, ([0],), X[:1])),
    (ShapeError, "index_add", lambda: ops.index_add(X, 0, I, X)),
    (ShapeError, "index_add", lambda: ops.index_add(X, 0, [1], X)),
    (ShapeError, "gather", lambda: ops.gather(X, 1, np.zeros((3, 3), int))),
    (ShapeError, "gather", lambda: ops.gather(X, 1, I[0])),
    (ShapeError, "scatter", lambda: ops.scatter(X, 1, I, X[:1])),
    (ShapeError, "scatter", lambda: ops.scatter(X, 1, np.zeros((3, 1), int), 1)),
    (DTypeError, "scatter_add", lambda: ops.scatter_add(X, 1, X, X)),
    (ShapeError, "argsort", lambda: ops.argsort(X, 2)),
    (ShapeError, "topk", lambda: ops.topk(X, 4)),
    (ShapeError, "topk", lambda: ops.topk(X, -1)),
    (ShapeError, "searchsorted", lambda: ops.searchsorted(X, np.ones(3))),
    (DTypeError, "searchsorted", lambda: ops.searchsorted([False, True], True)),
    (ShapeError, "pad", lambda: ops.pad(X, -1)),
    (ShapeError, "pad", lambda: ops.pad(X, (1, 2, 3))),
    (ShapeError, "pad", lambda: ops.pad(X, 0.5)),
    (DTypeError, "pad", lambda: ops.pad(I, 1, constant_values=2**40)),
    (ShapeError, "flip", lambda: ops.flip(X, 2)),
    (DTypeError, "take", lambda: ops.take(X, X, 0)),
    (ShapeError, "take", lambda: ops.take(X, 0, 2)),
    (DTypeError, "one_hot", lambda: ops.one_hot(X, 3)),
    (ShapeError, "one_hot", lambda: ops.one_hot(I, 0)),
    (ShapeError, "conv2d", lambda: ops.conv2d(X, X)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 4, 3, 3), F32))),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 5, 5), F32))),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), np.ones(7, F32))),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), stride=0)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), groups=2)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), groups=0)),
    (ShapeError, "conv2d", lambda: ops.conv2d(IMAGE, np.ones((8, 3, 1, 1), F32), padding=(1, -1))),
    (DTypeError, "conv2d", lambda: ops.conv2d(IMAGE.astype("int32"), np.ones((8, 3, 1, 1), "i4"))),
    (ShapeError, "max_pool2d", lambda: ops.max_pool2d(X, 2)),
    (ShapeError, "max_pool2d", lambda: ops.max_pool2d(IMAGE, 5)),
    (ShapeError, "max_pool2d", lambda: ops.max_pool2d(IMAGE, 2, padding=2)),
    (DTypeError, "max_pool2d", lambda: ops.max_pool2d(IMAGE > 0, 2)),
    (DTypeError, "avg_pool2d", lambda: ops.avg_pool2d(IMAGE.astype("int8"), 2)),
    (ShapeError, "adaptive_avg_pool2d", lambda: ops.adaptive_avg_pool2d(X, 2)),
    (ShapeError, "adaptive_avg_pool2d", lambda: ops.adaptive_avg_pool2d(IMAGE, (2, 0))),
    (ShapeError, "adaptive_avg_pool2d", lambda: ops.adaptive_avg_pool2d(IMAGE[:, :, :0], 2)),
    (ShapeError, "batch_norm", lambda: ops.batch_norm(IMAGE, np.ones(3, F32), np.ones(2, F32))),
    (ShapeError, "batch_norm_with_statistics", lambda: ops.batch_norm_with_statistics(X[0])),
    (ShapeError, "layer_norm", lambda: ops.layer_norm(X, 2)),
    (ShapeError, "layer_norm", lambda: ops.layer_norm(X, 3, weight=np.ones(2))),
    (ShapeError, "local_response_norm", lambda: ops.local_response_norm(X, 2)),
    (DTypeError, "local_response_norm", lambda: ops.local_response_norm(IMAGE.astype("int8"), 2)),
    (ShapeError, "local_response_norm", lambda: ops.local_response_norm(IMAGE, 0)),
    (ShapeError, "softmax", lambda: ops.softmax(X, 2)),
    (ShapeError, "log_softmax", lambda: ops.log_softmax(X[:, :0])),
    (ShapeError, "cross_entropy", lambda: ops.cross_entropy(X, I)),
    (DTypeError, "cross_entropy", lambda: ops.cross_entropy(X, X[:, 0])),
    (ShapeError, "mse_loss", lambda: ops.mse_loss(X, X[0])),
    (GraphError, "gelu", lambda: ops.gelu(X, "fast")),
    (ShapeError, "take_along_axis", lambda: ops.take_along_axis(X, I[:1])),
    (ShapeError, "zeros", lambda: ops.zeros(-1)),
    (DTypeError, "full", lambda: ops.full(2, "text")),
    (ShapeError, "arange", lambda: ops.arange(0, 1, 0)),
    (ShapeError, "arange", lambda: ops.arange(float("inf"))),
    (ShapeError, "linspace", lambda: ops.linspace(0, 1, -1)),
    (ShapeError, "eye", lambda: ops.eye(2**40, 2**40)),
    (ShapeError, "tril", lambda: ops.tril(X[0])),
    (ShapeError, "tile", lambda: ops.tile(X, -1)),
    (ShapeError, "repeat", lambda: ops.repeat(X, -1)),
    (ShapeError, "roll", lambda: ops.roll(X, (1, 2, 3), (0, 1))),
    (ShapeError, "moveaxis", lambda: ops.moveaxis(X, (0, 1), 0)),
    (ShapeError, "swapaxes", lambda: ops.swapaxes(X, 0, 2)),
    (ShapeError, "matrix_transpose", lambda: ops.matrix_transpose(X[0])),
    (ShapeError, "unstack", lambda: ops.unstack(X, 2)),
    (ShapeError, "flatten", lambda: ops.flatten(X, 1, 0)),
    (ShapeError, "vecdot", lambda: ops.vecdot(X, X[0, :2])),
    (ShapeError, "outer", lambda: ops.outer(X, X)),
    (ShapeError, "tensordot", lambda: ops.tensordot(X, X, 1)),
    (ShapeError, "tensordot", lambda: ops.tensordot(X, X, -1)),
    (GraphError, "einsum", lambda: ops.einsum("ii", X[:, :2])),
    (GraphError, "einsum", lambda: ops.einsum("ij->k", X)),
    (GraphError, "einsum", lambda: ops.einsum("i1", X)),
    (GraphError, "einsum", lambda: ops.einsum("ij,jk", X)),
    (ShapeError, "einsum", lambda: ops.einsum("ijk", X)),
    (ShapeError, "einsum", lambda: ops.einsum("ij,ik->jk", X, X.T)),
    (GraphError, "norm", lambda: ops.norm(X, 3)),
    (ShapeError, "norm", lambda: ops.norm(X[:0], float("inf"))),
    (ShapeError, "argmin", lambda: ops.argmin(X[:, :0], 1)),
    (ShapeError, "cumulative_sum", lambda: ops.cumulative_sum(X)),
    (ShapeError, "cumsum", lambda: ops.cumsum(X, 2)),
    (GraphError, "dropout", lambda: ops.dropout(X, 1.5)),
    (DTypeError, "random_normal", lambda: ops.random_normal((2,), dtype="int32")),
    (ShapeError, "random_uniform", lambda: ops.random_uniform((-1,))),
    (GraphError, "random_uniform", lambda: ops.random_uniform((1,), low=-3e38, high=3e38)),
    (GraphError, "random_uniform", lambda: ops.random_uniform((1,), 0, 7e4, dtype="float16")),
]


@pytest.mark.parametrize(
    ("kind", "name", "fn"), ERRORS, ids=[f"{n}-{f.__code__.co_firstlineno}" for _, n, f in ERRORS]
)
def test_errors_say_what_was_asked_of_what_and_where(kind, name, fn):
    with pytest.raises(GraphError) as caught:
        fn()
    assert type(caught.value) is kind
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert text.endswith(f"at {__file__}:{fn.__code__.co_firstlineno}")


def test_errors_show_the_operands():
    with pytest.raises(ShapeError, match=r"float32\[2,3\].*float64\[4\]"):
        ops.add(X, constant(np.ones(4)))
    with pytest.raises(ShapeError, match=r"conv2d: .*image: float32\[1,3,4,4\]"):
        ops.conv2d(IMAGE, w=np.ones((8, 4, 3, 3), F32))
    with pytest.raises(ShapeError, match=r"concat: .*float32\[2,3\].*float32\[3\]"):
        ops.concat([X, X[0]])


@pytest.mark.parametrize(
    ("name", "fn", "value"),
    [
        ("take", lambda i: ops.take(np.zeros((2, 3)), i, 0), "2"),
        ("take", lambda i: ops.take(np.zeros((3, 2)), i - 4, 1), "-3"),
        ("one_hot", lambda i: ops.one_hot(i, 2), "2"),
        ("one_hot", lambda i: ops.one_hot(i - 3, 2), "-2"),
        ("one_hot", lambda i: ops.cross_entropy(np.zeros((3, 2)), i), "2"),
    ],
)
def test_index_out_of_range_is_an_error_at_the_call(name, fn, value):
    y = mg.input("i", (3,), "int64")
    graph = Graph((y,), (fn(y),))
    with pytest.raises(GraphError) as caught:
        graph(np.array([1, 2, 1]))
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert f" {value} at (" in text
    assert text.endswith(f"at {__file__}:{fn.__code__.co_firstlineno}")


PUBLIC = {
    name: fn
    for name, fn in vars(ops).items()
    if inspect.isfunction(fn) and not name.startswith("_")
}


def test_every_public_function_is_a_builder_with_a_docstring():
    made = builder(lambda: None).__code__
    for name, fn in PUBLIC.items():
        assert fn.__code__ is made, f"{name} is no builder"
        assert fn.__name__ == name
        assert fn.__doc__, f"{name} has no docstring"


@pytest.mark.parametrize("nonsense", [..., "text", None, [[1], [2, 3]], {1}], ids=repr)
@pytest.mark.parametrize("name", PUBLIC)
def test_nonsense_is_a_graph_error(name, nonsense):
    fn = PUBLIC[name]
    params = inspect.signature(fn).parameters.values()
    required = [p for p in params if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    arity = len(required) or len(operand_dtypes(ELEMENTWISE[name], F32))
    try:
        fn(*[nonsense] * arity)
    except GraphError as error:
        assert str(error).startswith(f"{name}: ")


# ---------------------------------------------------------------- random numbers


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB],
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, words):
    low, high, step, stream = counter
    index = np.array([low | high << 32], np.uint64)
    a, b = philox(index, key[0] | key[1] << 32, step, stream)
    assert [int(a[0]), int(b[0])] == words


def drawn(y, seed=0, step=0):
    """The value of an expression with random ops, numbered as a compiled function has them."""
    graph = number_streams(Graph((SEED, STEP), (y,)))
    return graph(np.uint64(seed), np.uint64(step))[0]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_numbers_have_the_moments_of_the_uniform_distribution(dtype):
    u = drawn(ops.random_uniform((200, 500), dtype=dtype)).astype(F64)
    assert u.min() >= 0
    assert u.max() < 1
    for power in (1, 2, 3, 4):
        assert abs((u**power).mean() - 1 / (power + 1)) < 0.005
    assert abs(np.corrcoef(u[:, :-1].ravel(), u[:, 1:].ravel())[0, 1]) < 0.01


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_normal_numbers_have_the_moments_of_the_normal_distribution(dtype):
    z = drawn(ops.random_normal((200, 500), dtype=dtype)).astype(F64)
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3)):
        assert abs((z**power).mean() - moment) < 0.05
    assert abs(np.corrcoef(z[:, :-1].ravel(), z[:, 1:].ravel())[0, 1]) < 0.01


def test_more_equals_than_float16_counts_share_the_gradient_of_their_maximum():
    x = mg.input("x", (70_000,), "float16")
    (dx,) = mg.grad(ops.max(x).astype("float32"), [x])
    shares = Graph((x,), (dx,))(np.zeros(70_000, np.float16))[0]
    np.testing.assert_allclose(shares.astype(F64), 1 / 70_000, rtol=0.01)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("low", "high"), [(1, 2), (2, 1), (-3, 5)])
def test_uniform_numbers_do_not_round_to_the_upper_bound(low, high, dtype):
    u = drawn(ops.random_uniform((100_000,), low, high, dtype)).astype(F64)
    assert u.dtype == F64
    assert min(low, high) <= u.min()
    assert u.max() <= max(low, high)
    assert not (u == high).any()


def test_random_numbers_are_shifted_and_scaled():
    u = drawn(ops.random_uniform((1000,), -2, 3))
    np.testing.assert_allclose(u, drawn(ops.random_uniform((1000,))) * 5 - 2, rtol=1e-6, atol=1e-6)
    z = drawn(ops.random_normal((1000,), 4, 0.5, "float64"))
    np.testing.assert_allclose(z, drawn(ops.random_normal((1000,), dtype="float64")) * 0.5 + 4)


@pytest.mark.parametrize("draw_some", [ops.random_uniform, ops.random_normal])
def test_random_numbers_depend_on_seed_step_and_stream_and_on_nothing_else(draw_some):
    first = drawn(draw_some((64,)))
    np.testing.assert_array_equal(drawn(draw_some((64,))), first)
    np.testing.assert_array_equal(drawn(draw_some((8, 8))).ravel(), first)
    np.testing.assert_array_equal(drawn(draw_some((100,)))[:64], first)
    np.testing.assert_array_equal(drawn(draw_some((64,)) + mg.Parameter(0.0)), first)
    others = [
        drawn(draw_some((64,)), seed=1),
        drawn(draw_some((64,)), seed=2**32),
        drawn(draw_some((64,)), step=1),
        drawn(ops.stack([draw_some((64,)), draw_some((64,))]))[1],
    ]
    for i, j in itertools.combinations([first, *others], 2):
        assert not np.any(i == j)


def test_dropout_drops_and_scales():
    x = np.ones((100, 100), F32)
    y = drawn(ops.dropout(x, 0.25))
    assert set(np.unique(y)) == {0, F32.type(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert y.dtype == F32
    assert ops.dropout(X, 0) is X
    assert ops.dropout(X, 0.5, training=False) is X
    np.testing.assert_array_equal(drawn(ops.dropout(x, 1)), 0 * x)
