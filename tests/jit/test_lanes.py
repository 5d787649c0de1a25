"""Kernels over arrays whose innermost axis is a short block of channels."""

import functools

import numpy as np
import pytest
from level_3 import array
from needs import GENERATED, needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import kernels
from minigraph.graph import Graph, Input, toposort
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import MAX_KEPT_ROW, specialise
from minigraph.ops.reduction import Max, Min, Sum

pytestmark = needs_compiler

OUTER = (0, 2, 3)  # the axes of images [n, c / L, h, w, L] other than channels


def vectors(shape):
    return tuple(1 if axis in OUTER else n for axis, n in enumerate(shape))


def kernel(*ys):
    """Return the kernel for expressions of their leaves."""
    xs = tuple(x for x in toposort(ys) if isinstance(x.op, Input))
    return specialise(Graph(xs, ys), [x.spec.strides for x in xs])


def check(build, *xs, threads=(2,), runs=1, tolerance=2e-5, form="lane"):
    """Assert that one kernel of a form computes build(inputs) like NumPy; return its results.

    threads  numbers of threads, each of which computes it
    runs     how often; each gives the same bits
    """
    inputs = tuple(mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs))
    ys = build(*inputs)
    graph = Graph(inputs, ys if isinstance(ys, tuple) else (ys,))
    assert specialise(graph, [x.strides for x in xs]).pattern.form == form
    with np.errstate(all="ignore"):
        expected = graph(*xs)
    for number in threads:
        cg = mg.comp_graph("cpu", {"graph_opt_level": 0, "num_threads": number})
        function = cg.compile(inputs, list(Fused(graph).results(*inputs)))
        assert [(op, kernel) for op, kernel, _ in function.report().steps] == [("fused", GENERATED)]
        results, *repeated = (function(*xs) for _ in range(runs))
        for others in repeated:
            assert [y.tobytes() for y in others] == [y.tobytes() for y in results]
        for y, wide in zip(results, expected, strict=True):
            assert (y.shape, y.dtype) == (wide.shape, wide.dtype)
            y, wide = y.astype("float64"), wide.astype("float64")
            scale = np.abs(wide).max(initial=1, where=np.isfinite(wide))
            np.testing.assert_allclose(y, wide, 0, tolerance * scale)
    return results


def normalized(x, weight, bias, axes=OUTER):
    """Return (y, mean, variance) of a batch norm with a relu."""
    count = x.size // weight.size
    mean = Sum(axes)(x) / count
    distance = x - mean
    variance = Sum(axes)(distance * distance) / count
    y = distance * (weight * ops.rsqrt(variance + 1e-5)) + bias
    return ops.relu(y), mean, variance


def added(x, weight, bias, residual):
    y, mean, variance = normalized(x, weight, bias)
    return ops.relu(y + residual), mean, variance


def backward(dy, y, x, weight, mean, variance, axes=OUTER):
    """Return the gradients of a batch norm with a relu: (dx, dweight, dbias, dy of the norm)."""
    count = x.size // weight.size
    dz = ops.where(y <= 0, 0, dy)
    inverse = ops.rsqrt(variance + 1e-5)
    normal = (x - mean) * inverse
    dweight, dbias = Sum(axes)(dz * normal), Sum(axes)(dz)
    rest = dz - dbias / count - normal * (dweight / count)
    return rest * (weight * inverse), dweight, dbias, dz


SHAPES = [
    (8, 4, 9, 9, 16),
    (1, 5, 7, 7, 16),
    (6, 3, 1, 1, 16),
    (2, 1, 3, 1, 8),
    (2, 9, 30, 31, 8),
    (3, 4, 1, 5, 8),
    (1, 4, 1, 20_000, 16),  # five threads share a unit
]


# ---------------------------------------------------------------- several runs over the pixels


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [*((shape, "float32") for shape in SHAPES), *((shape, "float64") for shape in SHAPES[2:5])],
)
def test_a_batch_norm_and_what_goes_back_are_one_kernel_each(shape, dtype):
    x, dy = array(*shape, dtype=dtype), array(*shape, dtype=dtype, seed=1)
    v = vectors(shape)
    w, b = array(*v, dtype=dtype, seed=2), array(*v, dtype=dtype, seed=3)
    options = {"threads": (1, 2, 5), "tolerance": 1e-12 if dtype == "float64" else 2e-5}
    y, mean, variance = check(normalized, x, w, b, **options)
    check(added, x, w, b, dy, **options)
    check(backward, dy, y, x, w, mean, variance, **options)


def test_softmaxes_over_the_images_one_after_the_other_are_one_kernel():
    def build(x):
        for _ in range(4):
            e = ops.exp(x - Max(OUTER)(x))
            x = e / Sum(OUTER)(e) * 2
        return x, Min(OUTER)(x)

    check(build, array(3, 4, 5, 5, 8))


@pytest.mark.parametrize("form", ["lane", "column", "row"])
def test_an_output_holds_a_costly_value_while_the_kernel_runs_again(form):
    axes, shape = {
        "lane": (OUTER, (2, 4, 9, 9, 16)),
        "column": ((0,), (70, 600)),
        "row": ((1,), (2, MAX_KEPT_ROW + 1)),
    }[form]

    def build(x):
        e = ops.exp(x - Max(axes)(x))
        root = ops.sqrt(e)
        return root - Sum(axes)(root * x) * x, e / Sum(axes)(e) + x

    specialised = kernel(*build(mg.input("x", shape)))
    assert sorted(kept.operand for kept in specialised.pattern.kept) == [1, 2]
    assert specialised.inplace == ((),)
    check(build, array(*shape), form=form, tolerance=1e-4)


@pytest.mark.parametrize("form", ["lane", "row"])
def test_a_run_reads_back_what_an_earlier_one_has_stored(form):
    """The kernel reads one array instead of the three that it depends on."""
    axes, shape = {"lane": (OUTER, (2, 4, 9, 9, 16)), "row": ((1,), (40, 300))}[form]

    def build(x, y, z):
        total = x + y * z
        return total, total - Sum(axes)(total)

    inputs = [mg.input(name, shape) for name in "xyz"]
    specialised = kernel(*build(*inputs))
    (back,) = specialised.pattern.kept
    assert (back.run, back.operand) == (0, 3)
    assert specialised.pattern.moving(1) == [3, 4]
    # CUDA devices read all three again, so the first output overwrites none of them.
    assert specialised.inplace == ((1,), (1,), (1,))
    check(build, *(array(*shape, seed=i) for i in range(3)), form=form, tolerance=1e-4)
    assert not kernel(*build(inputs[0], inputs[0], 2.0)).pattern.kept  # one array either way


def test_nan_and_infinity_stay_in_their_lane():
    x = array(4, 4, 6, 6, 16)
    for i, value in enumerate((np.nan, np.inf, -np.inf)):
        x[i, 1, 2, 3, 5 * i] = value
    w, b = array(1, 4, 1, 1, 16, seed=1), array(1, 4, 1, 1, 16, seed=2)
    y, mean, _ = check(normalized, x, w, b)
    bad = {(int(i), int(k)) for _, i, _, _, k in np.argwhere(~np.isfinite(mean))}
    assert bad == {(1, 0), (1, 5), (1, 10)}
    assert not np.isfinite(y[:, 1, :, :, [0, 5, 10]]).any()
    check(lambda x: (Max(OUTER)(x), Min(OUTER)(x), Sum(OUTER)(x)), x)


SPLIT = {  # the axes that are reduced, and arrays of few long units
    "lane": (OUTER, (3, 1, 40, 41, 16)),
    "row": ((0, 2, 3), (20, 3, 60, 61)),
    "column": ((0,), (30_000, 3)),
}


@pytest.mark.parametrize("form", SPLIT)
def test_few_units_are_split_among_threads_in_every_run(form):
    axes, shape = SPLIT[form]
    v = tuple(1 if i in axes else n for i, n in enumerate(shape))
    x, dy = array(*shape, dtype="float64"), array(*shape, dtype="float64", seed=1)
    w, b = array(*v, dtype="float64", seed=2), array(*v, dtype="float64", seed=3)

    def forward(x, w, b, r):
        y, mean, variance = normalized(x, w, b, axes)
        e = ops.exp(y - Max(axes)(y))
        return ops.relu(y + r), mean, variance, e / Sum(axes)(e)

    inputs = [mg.input(f"x{i}", a.shape, "float64") for i, a in enumerate((x, w, b, dy))]
    split = kernel(*forward(*inputs))
    options = {"threads": (2, 4, 5), "tolerance": 1e-12, "form": form}
    assert min(map(split.splits, options["threads"])) > 1
    assert split.splits(1) == 1 and split.pattern.stages > 3
    y, mean, variance, _ = check(forward, x, w, b, dy, runs=4, **options)
    check(functools.partial(backward, axes=axes), dy, y, x, w, mean, variance, **options)


@pytest.mark.parametrize(
    ("units", "threads", "splits"),
    [(1, 1, 1), (1, 2, 2), (1, 16, 16), (3, 2, 2), (2, 2, 1), (4, 2, 1), (6, 4, 2), (9, 4, 1)],
)
def test_units_are_split_no_more_than_threads_have_alike_to_do(units, threads, splits):
    x = mg.input("x", (8, units, 64, 64, 16))
    assert kernel(x - Sum(OUTER)(x)).splits(threads) == splits
    short = mg.input("x", (2, units, 4, 4, 16))
    assert kernel(short - Sum(OUTER)(short)).splits(threads) == 1


# ---------------------------------------------------------------- one run


@pytest.mark.parametrize(
    ("lanes", "dtype"),
    [
        *((16, dtype) for dtype in ("float64", "int8", "int32", "uint8", "bool", "float16")),
        *((8, dtype) for dtype in ("float64", "int8")),
    ],
)
def test_reductions_of_every_type(lanes, dtype):
    x = array(3, 4, 7, 5, lanes, dtype=dtype)
    near = 1e-3 if dtype == "float16" else 1e-12
    check(lambda x: tuple(op(OUTER)(x) for op in (Sum, Max, Min)), x, tolerance=near)


@pytest.mark.parametrize(("lanes", "dtype"), [(16, "float32"), (8, "int8")])
def test_a_reduction_to_a_single_vector(lanes, dtype):
    check(Min((0,)), array(3, lanes, dtype=dtype), tolerance=0)


# ---------------------------------------------------------------- maps

N, C, H, W = 3, 4, 5, 7
BROADCAST = {
    "channels": (1, C, 1, 1, 16),
    "lanes alone": (16,),
    "lanes of every image": (N, C, 1, 1, 16),
    "pixels": (H, W, 1),
    "pixels of every image": (N, C, H, W, 1),
    "blocks": (1, C, 1, 1, 1),
    "a number": (),
    "columns": (1, 1, 1, W, 16),
    "rows": (N, 1, H, 1, 16),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_operands_broadcast(name):
    shape, dtype = BROADCAST[name], "int16" if name == "channels" else "float32"
    x, y = array(N, C, H, W, 16, dtype=dtype), array(*shape, dtype=dtype, seed=1)
    z = array(1, C, 1, 1, 16, dtype=dtype, seed=2)
    check(lambda x, y, z: (x * y + z, (y * y - x) * (z + 1)), x, y, z, threads=(1, 2, 3))


def test_all_operands_may_be_broadcast():
    x, y = array(N, C, H, 1, 8), array(1, C, 1, W, 1, seed=1)
    check(lambda x, y: x * y, x, y)
    check(lambda x: ops.broadcast_to(x * 2, (N, C, H, W, 8)), x)


VIEWS = {
    "transposed": lambda x: x.transpose((0, 2, 1, 3)),
    "every other": lambda x: x[:, ::2, ::-1],
    "a part": lambda x: x[:, 1:, 2:],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_read_in_place(view):
    x, row = array(4, 9, 10, 16), array(16, seed=1)
    a, b = mg.input("a", x.shape), mg.input("b", row.shape)
    ys = (view(a) * b, view(a).sum((0, 2)))
    function = mg.comp_graph("cpu").compile([a, b], ys)
    assert {maker for _, maker, _ in function.report().steps} == {GENERATED}
    y, total = function(x, row)
    np.testing.assert_array_equal(y, view(x) * row)
    np.testing.assert_allclose(total, view(x).sum((0, 2)), 1e-5, 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_small_floats_are_rounded_as_by_one_kernel_for_each_op(dtype):
    x, w = array(2, 4, 5, 5, 16).astype(np.dtype(dtype)), array(1, 4, 1, 1, 16, seed=1)
    w = w.astype(x.dtype)
    (y,) = check(lambda x, w: ops.relu(x * w + x), x, w, tolerance=0)
    assert y.any()
    check(lambda x, w: Sum(OUTER)(x * w), x, w, tolerance=0.01)


def test_outputs_beyond_the_cache_are_streamed(monkeypatch):
    monkeypatch.setattr(kernels, "cache_bytes", lambda: 0)
    for pixels in (1, 63, 64, 65, 200):
        for dtype in ("float32", "float64", "int8"):
            x = array(2, 4, 3, pixels, 16, dtype=dtype)
            w = array(1, 4, 1, 1, 16, dtype=dtype, seed=1)
            check(lambda x, w: (x + w, x * w), x, w, tolerance=0)
            if dtype != "int8":
                check(normalized, x, w, w, tolerance=2e-5)


# ---------------------------------------------------------------- conditions for this form


def form(y):
    return kernel(y).pattern.form


def test_other_lengths_and_other_axes_have_other_forms():
    x, row = mg.input("x", (3, 5, 16)), mg.input("row", (16,))
    assert form(x + row) == "lane"
    assert form(x + 1) == "map"
    assert form(mg.input("one", (16,)) + row) == "map"
    assert form(x.sum(2) + 1) == "row"
    assert form(x.sum(0) + 1) == "column"
    assert form(x.sum((0, 1)) + 1) == form(x.sum(1) + 1) == "lane"
    assert form(mg.input("y", (3, 5, 32)) + mg.input("row", (32,))) == "map"
    assert form(mg.input("z", (5, 3, 32)).sum((0, 1))) == "column"


def test_an_operand_that_steps_over_numbers_along_the_lanes_has_another_form():
    x, row = mg.input("x", (3, 5, 16)), mg.input("row", (16,))
    y = Graph((x, row), (x + row,))
    assert specialise(y, [(640, 128, 8), (4,)]).pattern.form == "map"
    assert specialise(y, [(640, 128, 4), (0,)]).pattern.form == "lane"


def test_random_numbers_are_counted_along_one_flat_axis():
    x, row = mg.input("x", (3, 5, 16)), mg.input("row", (16,))
    assert form(ops.dropout(x, 0.5) * row) == "map"


def test_one_text_serves_every_number_of_blocks_and_pixels():
    patterns = set()
    for shape in ((8, 4, 9, 9, 16), (2, 8, 3, 3, 16), (5, 6, 1, 4, 16)):
        x, w = mg.input("x", shape), mg.input("w", vectors(shape))
        patterns.add(kernel(*normalized(x, w, w)).pattern)
    assert len(patterns) == 1


def test_what_is_read_for_the_last_time_may_be_overwritten():
    shape = (4, 4, 6, 6, 16)
    dy, y, x = (mg.input(name, shape) for name in ("dy", "y", "x"))
    v = [mg.input(name, vectors(shape)) for name in ("w", "mean", "variance")]
    specialised = kernel(*backward(dy, y, x, *v)[:3])
    assert specialised.inplace[:3] == ((0,), (0,), (0,))
    assert all(1 in outputs and 2 in outputs for outputs in specialised.inplace[3:])
    (early,) = kernel(x * Sum(OUTER)(x), x * 2).inplace
    assert early == (0,)  # the other one is written before x is read again


def test_overwriting_an_operand_changes_nothing():
    x = mg.input("x", (2, 4, 20, 21, 16), "float64")
    w = mg.input("w", (1, 4, 1, 1, 16), "float64")
    step = Fused(Graph((x, w), (normalized(x, w, w)[0] * w,)))
    y = x
    for _ in range(3):
        y = step(ops.tanh(y), w)
    values, weights = (array(*v.shape, dtype=v.dtype) for v in (x, w))
    expected = mg.comp_graph("reference").compile([x, w], y)(values, weights)
    for threads in (1, 2, 5):
        options = {"graph_opt_level": 0, "num_threads": threads}
        function = mg.comp_graph("cpu", options).compile([x, w], y)
        memory = function.report().memory
        assert memory.arena_bytes < memory.unplanned_bytes
        np.testing.assert_allclose(function(values, weights), expected, 1e-9, 1e-9)
