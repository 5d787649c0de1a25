"""Generated C: all memory layouts of operands, all forms of reductions."""

import itertools
import time

import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, accepts
from level_3 import array
from needs import GENERATED, needs_c, needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import kernels
from minigraph.graph import BFLOAT16, BOOL, Graph, Spec
from minigraph.jit.fused import Fused, meaning
from minigraph.jit.kernel import specialise
from minigraph.jit.loops import collapse
from minigraph.ops.arithmetic import Add
from minigraph.ops.reduction import Sum

pytestmark = needs_compiler


def on_cpu(build, *xs, **options):
    """Compile build(inputs) for the CPU, check that C computes it, and call it.

    Each of several results has a separate kernel.
    """
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    outputs = build(*inputs)
    options = {"graph_opt_level": 0, **options} if isinstance(outputs, list) else options
    function = mg.comp_graph("cpu", options).compile(inputs, outputs)
    assert {kernel for _, kernel, _ in function.report().steps} <= {"c", GENERATED}
    return function(*xs)


def pairs(xs):
    return list(zip(xs[::2], xs[1::2], strict=True))


# ---------------------------------------------------------------- elementwise


@needs_c
def test_a_comparison_as_a_number_is_a_choice_which_compilers_can_vectorise():
    x = mg.input("x", (64,))
    graph = mg.comp_graph("cpu", {"graph_opt_level": 3})
    function = graph.compile([x], x * (x == ops.max(x)).astype("float32"))
    (kernel,) = function.report().kernels
    assert " ? (float)1 : 0)" in kernel.source


@needs_c
def test_a_bool_from_memory_is_converted_because_compilers_do_not_vectorise_a_choice():
    x = mg.input("x", (4, 64), "bool")
    graph = mg.comp_graph("cpu", {"graph_opt_level": 3})
    for y in (x.astype("float32") + 1, ops.roll(x, 1, 1).astype("float16") * 2):
        (kernel,) = graph.compile([x], y).report().kernels
        assert "? (float)1" not in kernel.source


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
def test_operands_broadcast(threads):
    xs = [array(*shape, seed=i) for pair in SHAPES.values() for i, shape in enumerate(pair)]

    def build(*nodes):
        return [a - b for a, b in pairs(nodes)]

    for y, (a, b) in zip(on_cpu(build, *xs, num_threads=threads), pairs(xs), strict=True):
        np.testing.assert_array_equal(y, a - b)


VIEWS = {
    "transposed": lambda x: x.transpose(2, 0, 1),
    "steps": lambda x: x[:, ::2, 1::3],
    "reversed": lambda x: x[::-1, :, ::-1],
    "one column": lambda x: x[:, :, 1:2],
    "first of an axis": lambda x: x[:, :1],
    "new axes": lambda x: x[None, :, None],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_views_are_read_in_place(dtype):
    x = array(4, 6, 8, dtype=dtype)
    ys = on_cpu(lambda a: [view(a) != 0 for view in VIEWS.values()], x)
    for y, view in zip(ys, VIEWS.values(), strict=True):
        np.testing.assert_array_equal(y, view(x) != 0)


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
    expected = function(*(x != 0 for x in xs))
    for result, want in zip(function(*(x.view(bool) for x in xs)), expected, strict=True):
        np.testing.assert_array_equal(result, want)


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
            zeros, largest = on_cpu(lambda a: [a == 0, ops.maximum(a, a[:1])], x, num_threads=2)
            np.testing.assert_array_equal(zeros, x == 0)
            np.testing.assert_array_equal(largest, np.maximum(x, x[:1]))


@needs_c
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
    parameter, operand = mg.Parameter(value), mg.input("x", x.shape)
    step = mg.comp_graph("cpu").compile(
        [operand], parameter * operand, {parameter: parameter + operand}
    )
    np.testing.assert_array_equal(step(x), value * x)
    np.testing.assert_array_equal(parameter.numpy(), value + x)


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


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_sums_over_any_axes(order):
    x = array(3, 5, 4, 70)
    ys = on_cpu(lambda a: [a.transpose(order).sum(axes, keepdims=True) for axes in AXES], x)
    for axes, y in zip(AXES, ys, strict=True):
        want = x.transpose(order).sum(axes, keepdims=True)
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5)


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
    specialised = specialise(both, [v.spec.strides for v in both.inputs])
    assert (
        specialised.pattern.form == form
        and specialised.splits(2) > 1
        and 0 in specialised.inplace[1]
    )
    doubled, total = Fused(both).results(x, ops.tanh(w))
    values, weights = (array(*v.shape, dtype=v.dtype) for v in (x, w))
    options = {"graph_opt_level": 0, "num_threads": 2}
    reused, fresh = (
        mg.comp_graph(device, options).compile([x, w], doubled + total)(values, weights)
        for device in ("cpu", "reference")
    )
    np.testing.assert_allclose(reused, fresh, 1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "uint8", "bool"])
def test_reductions_of_every_type(dtype):
    """Those of a dtype are compiled together, each as a separate kernel."""
    x = array(6, 67, dtype=dtype)
    cases = [*itertools.product(("sum", "prod", "max", "min", "argmax"), (0, 1))]
    ys = on_cpu(lambda a: [getattr(ops, n)(a, axis) for n, axis in cases], x)
    for (name, axis), y in zip(cases, ys, strict=True):
        expected = getattr(np, name)(x, axis)
        assert y.dtype == expected.dtype, name
        np.testing.assert_allclose(y, expected, rtol=1e-5, err_msg=f"{name} over {axis}")


# ---------------------------------------------------------------- ops that copy


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
    results = on_cpu(
        lambda v: [fn(v, axis) for fn in (ops.softmax, ops.log_softmax, ops.logsumexp)],
        x,
        graph_opt_level=level,
    )
    expected = [np.exp(logs - total), logs - total, total.squeeze(axis)]
    for result, want in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, want, rtol=1e-6)


# ---------------------------------------------------------------- negative strides


TURNED = [(5, 7), (300, 200), (40, 3), (2, 70_000), (70, 9, 8)]


def backwards(x):
    return ops.flip(x, -1)


READ_BACKWARDS = {
    "alone": backwards,
    "in a map": lambda x: backwards(x) + x,
    "sums of rows": lambda x: ops.sum(backwards(x) * x, axis=-1),
    "sums of columns": lambda x: ops.sum(backwards(x) * x, axis=0),
    "rows of two runs": lambda x: ops.softmax(backwards(x), axis=-1) * x,
    "columns of two runs": lambda x: ops.softmax(backwards(x), axis=0) * x,
}


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((shape, "float32") for shape in TURNED),
        *((TURNED[1], "float64"), (TURNED[0], BFLOAT16), (TURNED[3], BFLOAT16)),
    ],
    ids=str,
)
def test_kernels_read_backwards(shape, dtype):
    x = mg.input("x", shape, dtype)
    value = np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)
    results = [read(x) for read in READ_BACKWARDS.values()]
    values = mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], results)(value)
    expected = mg.comp_graph("reference").compile([x], results)(value)
    near = 0.01 if dtype == BFLOAT16 else 1e-5
    for name, one, other in zip(READ_BACKWARDS, values, expected, strict=True):
        wide = one.astype(float), other.astype(float)
        np.testing.assert_allclose(*wide, rtol=near, atol=near, err_msg=name)


@pytest.mark.parametrize("shape", TURNED, ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "float16", "bool"])
def test_elements_of_any_size_are_turned_round(shape, dtype):
    x = mg.input("x", shape, dtype)
    value = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    results = mg.comp_graph("cpu").compile([x], [ops.flip(x, -1), ops.flip(x)])(value)
    np.testing.assert_array_equal(results[0], value[..., ::-1], strict=True)
    np.testing.assert_array_equal(results[1], np.flip(value), strict=True)


def test_choices_of_choices_are_vectorised():
    """A branch for each element would take 80 times as long."""
    x = array(1 << 20)

    def seconds(build):
        times = []
        v = mg.input("x", x.shape, x.dtype)
        function = mg.comp_graph("cpu", {"graph_opt_level": 3, "num_threads": 1}).compile(
            [v], build(v)
        )
        for _ in range(10):
            start = time.perf_counter()
            function(x)
            times.append(time.perf_counter() - start)
        return min(times)

    one = seconds(lambda v: ops.maximum(v, 0.5))
    chains = {
        "both bounds": lambda v: ops.minimum(ops.maximum(v, -0.5), 0.5),
        "of relu": lambda v: ops.minimum(ops.relu(v), 0.5),
        "three": lambda v: ops.maximum(ops.minimum(ops.maximum(v, -0.5), v * v), 0.1),
        "of hardswish": lambda v: ops.maximum(v, ops.hardswish(v * v)),
        "where": lambda v: ops.where((v > 0) | (v * v < 0.5), ops.clip(v, -1, 1), v) * v,
        "largest": lambda v: ops.max(ops.where((v > 0) & (v * v > 0.5), v, ops.minimum(v, 0.7))),
    }
    assert {name for name, chain in chains.items() if seconds(chain) > 10 * one} == set()
