"""Generated C: every way in which operands lie in memory, every form of a reduction."""

import itertools

import numpy as np
import pytest
from needs import needs_compiler
from samples import ELEMENTWISE, accepts

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import kernels
from minigraph.graph import BOOL, Graph, Spec
from minigraph.jit.fused import Fused, meaning
from minigraph.jit.kernel import specialise
from minigraph.jit.loops import collapse
from minigraph.ops.arithmetic import Add
from minigraph.ops.reduction import Sum

pytestmark = needs_compiler


def array(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 5, shape).astype(dtype)
    return rng.normal(size=shape).astype(dtype)


def on_cpu(build, *xs, **options):
    """Compile build(inputs) for the CPU, check that C computes it, and call it."""
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    function = mg.comp_graph("cpu", options).compile(inputs, build(*inputs))
    assert {kernel for _, kernel, _ in function.report().steps} <= {"c"}
    return function(*xs)


# ---------------------------------------------------------------- elementwise


def test_a_comparison_as_a_number_is_a_choice_which_compilers_can_vectorise():
    x = mg.input("x", (64,))
    graph = mg.comp_graph("cpu", {"graph_opt_level": 3})
    function = graph.compile([x], x * (x == ops.max(x)).astype("float32"))
    (kernel,) = function.report().kernels
    assert " ? (float)1 : 0)" in kernel.source


SHAPES = {
    "equal": ((3, 4, 5), (3, 4, 5)),
    "scalar": ((3, 4, 5), ()),
    "row": ((3, 4, 5), (5,)),
    "column": ((3, 4, 5), (4, 1)),
    "channel": ((2, 3, 4, 5), (3, 1, 1)),
    "outer product": ((7, 1), (1, 9)),
    "both repeated": ((2, 1, 5, 1), (3, 1, 4)),
    "one element": ((1, 1), (1,)),
    "more than one part": ((40, 1001), (1001,)),
}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_operands_broadcast(shapes, threads):
    x, y = array(*shapes[0]), array(*shapes[1], seed=1)
    np.testing.assert_array_equal(on_cpu(lambda a, b: a - b, x, y, num_threads=threads), x - y)


VIEWS = {
    "transposed": lambda x: x.transpose(2, 0, 1),
    "steps": lambda x: x[:, ::2, 1::3],
    "reversed": lambda x: x[::-1, :, ::-1],
    "one column": lambda x: x[:, :, 1:2],
    "first of an axis": lambda x: x[:, :1],
    "new axes": lambda x: x[None, :, None],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_views_are_read_in_place(view, dtype):
    x = array(4, 6, 8, dtype=dtype)
    expected = view(x) != 0
    np.testing.assert_array_equal(on_cpu(lambda a: view(a) != 0, x), expected)


READS_BOOLS = {
    "elementwise": lambda p, q: [
        op(*(p, q)[: len(op.operands)])
        for op in ELEMENTWISE.values()
        if accepts(op, BOOL) and len(op.operands) < 3
    ],
    "choice": lambda p, q: [ops.where(p, 2.0, 3.0), ops.where(p, q, ~q)],
    "reduction": lambda p, q: [
        *(reduce(p, axis) for reduce in (ops.sum, ops.prod, ops.max, ops.min) for axis in (0, 1)),
        *(ops.argmax(p, axis) for axis in (0, 1)),
        ops.mean(p.astype("float32")),
    ],
}


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("build", READS_BOOLS.values(), ids=READS_BOOLS)
def test_any_byte_but_0_of_a_bool_is_true(build, level):
    rng = np.random.default_rng(0)
    xs = [rng.choice([0, 0, 1, 2, 128, 255], (5, 67)).astype(np.uint8) for _ in range(2)]
    inputs = [mg.input(name, (5, 67), "bool") for name in "pq"]
    outputs = build(*inputs)
    function = mg.comp_graph("cpu", {"graph_opt_level": level}).compile(inputs, outputs)
    wanted = function(*(x != 0 for x in xs))
    for got, want in zip(function(*(x.view(bool) for x in xs)), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((192, 256), (1, 0)), ((3, 250, 66), (2, 0, 1)), ((8, 64, 8, 16), (3, 2, 1, 0))],
)
def test_large_transposed_arrays_are_read_in_tiles(shape, axes, threads):
    x, y = array(*shape), array(*(shape[a] for a in axes), seed=1)
    tiles = specialise(
        meaning(Add(), [Spec(y.shape), Spec(y.shape)]), [x.transpose(axes).strides, y.strides]
    ).nest.loops[-2:]
    assert all(8 <= n <= 64 for n, _ in tiles)
    z = on_cpu(lambda a, b: a.transpose(axes) + b, x, y, num_threads=threads)
    np.testing.assert_array_equal(z, x.transpose(axes) + y)


def test_random_numbers_of_a_transposed_shape_keep_their_order():
    x = array(200, 300)
    drawn = [
        on_cpu(lambda a: ops.dropout(a.transpose(1, 0), 0.5), x, graph_opt_level=level) != 0
        for level in (0, 3)
    ]
    np.testing.assert_array_equal(*drawn)


@pytest.mark.parametrize("shape", [(24,), (4, 48), (2, 3, 32)])
def test_a_reshape_of_a_view_copies_it_in_order(shape):
    x = array(4, 6, 8)
    y = on_cpu(lambda a: a.transpose(2, 1, 0)[: np.prod(shape) // 24].reshape(shape), x)
    np.testing.assert_array_equal(y, x.transpose(2, 1, 0)[: np.prod(shape) // 24].reshape(shape))


def test_an_output_beyond_the_cache_is_streamed(monkeypatch):
    monkeypatch.setattr(kernels, "cache_bytes", lambda: 0)
    for n in (1, 7, 1023, 1024, 1025, 5000):
        for dtype in ("float32", "float64", "int8", "bool"):
            x = array(3, n, dtype=dtype)
            np.testing.assert_array_equal(on_cpu(lambda a: a == 0, x, num_threads=2), x == 0)
            np.testing.assert_array_equal(on_cpu(ops.maximum, x, x[:1]), np.maximum(x, x[:1]))


@pytest.mark.parametrize("rows", [(4096, 64), (64, 32, 8)], ids=["row", "lane"])
def test_streamed_outputs_are_waited_for_once_and_not_in_each_unit(rows):
    x = mg.input("x", rows)
    graph = mg.comp_graph("cpu", {"graph_opt_level": 3})
    (kernel,) = (
        graph.compile([x], x / ops.sum(x, -1 if len(rows) == 2 else 1, keepdims=True))
        .report()
        .kernels
    )
    assert kernel.source.count("mg_fence()") == 1
    assert "\n  if (a[4]) mg_fence();\n}" in kernel.source


def test_beside_a_streamed_output_another_overwrites_an_input(monkeypatch):
    monkeypatch.setattr(kernels, "cache_bytes", lambda: 0)
    value, x = array(700, 3), array(700, 3, seed=1)
    parameter, given = mg.Parameter(value), mg.input("x", x.shape)
    step = mg.comp_graph("cpu").compile([given], parameter * given, {parameter: parameter + given})
    np.testing.assert_array_equal(step(x), value * x)
    np.testing.assert_array_equal(parameter.numpy(), value + x)


def test_extents_and_strides_are_arguments_of_a_kernel():
    x, y = array(30, 5), array(5, seed=1)
    on_cpu(lambda a, b: ops.atan2(a, b), x, y)
    mg.jit.reset_stats()
    for shape in ((2, 5), (7, 9), (3, 4, 6)):
        x, y = array(*shape), array(shape[-1], seed=1)
        np.testing.assert_allclose(on_cpu(ops.atan2, x, y), np.arctan2(x, y), rtol=1e-6)
    assert mg.jit.stats().compilations == 0


def test_all_kernels_of_a_function_that_are_alike_are_compiled_once():
    x = mg.input("x", (4,), "int16")
    y = x
    for i in range(5):
        y = ops.bitwise_xor(y, np.int16(i))
    mg.jit.reset_stats()
    mg.comp_graph("cpu").compile([x], y)
    assert mg.jit.stats().compilations <= 1


def test_neighbouring_axes_merge_where_all_operands_walk_them_as_one():
    def extents(shape, *strides):
        return tuple(n for n, _ in collapse(zip(shape, zip(*strides, strict=True), strict=True)))

    assert extents((2, 3, 4), (48, 16, 4)) == (24,)
    assert extents((2, 3, 4), (48, 16, 4), (0, 0, 4)) == (6, 4)
    assert extents((2, 1, 4), (16, 99, 4)) == (8,)
    assert extents((2, 3, 4), (48, 16, 4), (4, 8, 24)) == (2, 3, 4)
    assert extents((1, 1), (7, 9)) == ()


# ---------------------------------------------------------------- reductions


AXES = [axes for n in (1, 2, 3, 4) for axes in itertools.combinations(range(4), n)]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("view", ["as it is", "transposed"])
def test_sums_over_any_axes(axes, view):
    x = array(3, 5, 4, 70)
    turn = (lambda a: a) if view == "as it is" else (lambda a: a.transpose(3, 1, 0, 2))
    y = on_cpu(lambda a: turn(a).sum(axes, keepdims=True), x)
    np.testing.assert_allclose(y, turn(x).sum(axes, keepdims=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((200_001,), 0), ((2, 90_001), 1), ((40_000, 3), 0), ((30_000, 7, 2), (0, 2)), ((9, 9001), 0)],
)
def test_long_reductions_are_shared_among_threads(shape, axes, threads):
    x = array(*shape, dtype="float64")
    for build, numpys in ((ops.sum, np.sum), (ops.max, np.max), (ops.min, np.min)):
        y = on_cpu(lambda a, build=build: build(a, axes), x, num_threads=threads)
        np.testing.assert_allclose(y, numpys(x, axes), rtol=1e-12)


@pytest.mark.parametrize(
    ("form", "shape", "axes"),
    [
        ("row", (3, 60_000), (1,)),
        ("column", (40_000, 3), (0,)),
        ("lane", (3, 50, 51, 16), (0, 1, 2)),
    ],
)
def test_a_result_may_overwrite_what_every_split_of_its_unit_reads(form, shape, axes):
    x = mg.input("x", shape, "float64")
    w = mg.input("w", tuple(1 if i in axes else n for i, n in enumerate(shape)), "float64")
    both = Graph((x, w), (w * 2, Sum(axes)(x * w)))
    made = specialise(both, [v.spec.strides for v in both.inputs])
    assert made.pattern.form == form and made.splits(2) > 1 and 0 in made.inplace[1]
    doubled, total = Fused(both).results(x, ops.tanh(w))
    values, weights = (array(*v.shape, dtype=v.dtype) for v in (x, w))
    options = {"graph_opt_level": 0, "num_threads": 2}
    reused, fresh = (
        mg.comp_graph(device, options).compile([x, w], doubled + total)(values, weights)
        for device in ("cpu", "reference")
    )
    np.testing.assert_allclose(reused, fresh, 1e-9)


def test_a_reduction_gives_the_same_bits_every_time():
    x = array(300_000)
    sums = {on_cpu(lambda a: a.sum(), x, num_threads=2).tobytes() for _ in range(5)}
    assert len(sums) == 1


@pytest.mark.parametrize("size", [1 << 10, 1 << 17, 1 << 22])
def test_the_error_of_a_sum_does_not_grow_with_its_length(size):
    x = np.random.default_rng(0).random(size, dtype=np.float32)
    exact = x.sum(dtype=np.float64)
    assert abs(on_cpu(lambda a: a.sum(), x) - exact) < 3e-7 * exact
    rows = x.reshape(-1, 8)
    exact = rows.sum(0, dtype=np.float64)
    assert np.abs(on_cpu(lambda a: a.sum(0), rows) - exact).max() < 1e-6 * exact.max()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "uint8", "bool"])
def test_reductions_of_every_type(dtype):
    """Those of a type are compiled at once, each a kernel of its own."""
    x = array(6, 67, dtype=dtype)
    cases = [*itertools.product(("sum", "prod", "max", "min", "argmax"), (0, 1))]
    ys = on_cpu(lambda a: [getattr(ops, n)(a, axis) for n, axis in cases], x, graph_opt_level=0)
    for (name, axis), y in zip(cases, ys, strict=True):
        expected = getattr(np, name)(x, axis)
        assert y.dtype == expected.dtype, name
        np.testing.assert_allclose(y, expected, rtol=1e-5, err_msg=f"{name} over {axis}")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["sum", "max", "min", "argmax"])
@pytest.mark.parametrize("place", [0, 33, 99])
def test_reductions_pass_nan_and_infinity(name, value, place):
    x = array(100, 3)
    x[place, 1] = value
    for a in (x, x.T.copy()):
        axis = int(np.argmax(a.shape) != 0)
        y = on_cpu(lambda v, axis=axis: getattr(ops, name)(v, axis), a)
        np.testing.assert_allclose(y, getattr(np, name)(a, axis), rtol=1e-5)


# ---------------------------------------------------------------- ops made of copies


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool"])
def test_parts_are_copied_to_their_places(dtype):
    x, y = array(2, 3, 4, dtype=dtype), array(2, 2, 4, dtype=dtype, seed=1)
    joined = on_cpu(lambda a, b: ops.concat([a, b.transpose(0, 1, 2)[:, ::-1], a], 1), x, y)
    np.testing.assert_array_equal(joined, np.concatenate([x, y[:, ::-1], x], 1))
    widths = ((1, 0), (0, 2), (3, 1))
    np.testing.assert_array_equal(on_cpu(lambda a: ops.pad(a, widths), x), np.pad(x, widths))


def test_padding_may_be_infinite():
    x = array(2, 3)
    y = on_cpu(lambda a: ops.pad(a, 1, -np.inf), x)
    np.testing.assert_array_equal(y, np.pad(x, 1, constant_values=-np.inf))


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_error_of_a_softmax_does_not_grow_with_its_length(axis, level):
    x = np.full((1 << 20, 2) if axis == 0 else (2, 1 << 20), -0.3, np.float32)
    x[0, 0] = x[-1, -1] = 0  # the peak, beside which the others are no ones
    logs = x.astype(np.float64)
    total = np.log(np.exp(logs).sum(axis, keepdims=True))
    found = on_cpu(
        lambda v: [fn(v, axis) for fn in (ops.softmax, ops.log_softmax, ops.logsumexp)],
        x,
        graph_opt_level=level,
    )
    wanted = [np.exp(logs - total), logs - total, total.squeeze(axis)]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
