"""The kernels of indices, of sorting, of interpolation and of argmax have the bits of NumPy."""

import functools
import itertools

import numpy as np
import pytest
from native_and_reference import assert_bits, both
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import indexing
from minigraph.graph import DTYPES, constant
from minigraph.ops.interpolation import Blend, BlendBackward

pytestmark = needs_compiler

RNG = np.random.default_rng(0)
ALONG = {  # the shape of x, the axis, and how many indices there are along it
    "rows": ((5, 33), 1, (7,)),
    "a vector": ((70,), 0, (200,)),
    "columns": ((50, 21), 0, (9,)),
    "in between": ((3, 20, 5), 1, (6,)),
    "for several threads": ((40, 30, 40), 1, (50,)),
    "one long row": ((50_000,), 0, (40_000,)),
}
TAKEN = {  # the shape of x, the axis, and the shape of the indices
    "rows": ((50, 33), 0, (4, 7)),
    "a vector": ((70,), 0, (200,)),
    "columns": ((6, 50), 1, (3,)),
    "in between": ((3, 20, 5), 1, (2, 9)),
    "one index": ((4, 5), 0, ()),
    "one row": ((1, 5), 0, (6,)),
    "for several threads": ((300, 128), 0, (40, 10)),
    "many before the axis": ((700, 60, 1), 1, (30,)),
    "many of each": ((3, 700), 0, (5, 90)),
    "many of some": ((2, 90, 300), 1, (150,)),
    "many of one": ((2, 1, 1), 1, (150,)),
}


def values(shape, dtype="float32"):
    """Integers: whichever type they are added up in, the sums are the same."""
    return (RNG.normal(size=shape) * 9).round().astype(dtype)


def indices(n, shape, dtype="int64"):
    places = RNG.integers(-n if np.dtype(dtype).kind == "i" else 0, n, shape)
    if n == 90 and shape:
        places[::2] = 4
    return places.astype(dtype)


def taken(shape, axis, count, dtype="float32", index="int64"):
    """Return the case of elements that are taken."""
    take = functools.partial(lambda x, at, axis: ops.take(x, at, axis), axis=axis)
    return take, values(shape, dtype), indices(shape[axis], count, index)


def gradient_of_taken(shape, axis, count):
    def gradient(dy, at):
        x = mg.Parameter(np.zeros(shape, "float32"))
        return mg.grad((ops.take(x, at, axis) * dy).sum(), [x])[0]

    rows = *shape[:axis], *count, *shape[axis + 1 :]
    return gradient, values(rows), indices(shape[axis], count)


def moved(shape, axis, count, dtype="float32", index="int64"):
    """Return the cases of elements that are gathered and scattered along an axis."""
    rows = *shape[:axis], *count, *shape[axis + 1 :]
    x, at, v = values(shape, dtype), indices(shape[axis], rows, index), values(rows, dtype)
    return (
        (lambda x, at: ops.gather(x, axis, at), x, at),
        (lambda x, at, v: ops.scatter(x, axis, at, v), x, at, v),
    )


def added(shape, axis, count):
    _, (_, x, at, v) = moved(shape, axis, count)
    return lambda x, at, v: ops.scatter_add(x, axis, at, v), x, at, v


@pytest.mark.parametrize("threads", [1, 5])
def test_elements_of_any_shape_are_moved_and_added_up(threads):
    cases = [each for row in ALONG.values() for each in (*moved(*row), added(*row))]
    cases += [each for row in TAKEN.values() for each in (taken(*row), gradient_of_taken(*row))]
    assert_bits(*cases, num_threads=threads)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8"])
def test_sums_of_rows_are_rounded_once(dtype):
    def added_rows(shape, axis, count):
        rows = *shape[:axis], *count, *shape[axis + 1 :]
        xs = values(shape, dtype), indices(shape[axis], count), values(rows, dtype)
        return lambda x, at, v: ops.index_add(x, axis, at, v), *xs

    assert_bits(*(added_rows(*row) for row in TAKEN.values() if len(row[2]) == 1), num_threads=2)


def test_elements_and_indices_of_any_type_are_moved():
    sizes = (9, 4), 0, (5,)
    for dtype in ("float16", "bfloat16", "float64", "int8", "bool", "int64"):
        assert_bits(*moved(*sizes, dtype), taken(*sizes, dtype))
    sizes = (100, 3), 0, (50,)
    for index in ("int8", "uint8", "int32", "uint64"):
        assert_bits(*moved(*sizes, index=index), taken(*sizes, index=index))


RUNS = {
    "a reflection": [2, 1, *range(60), 58, 57],
    "negative indices": [*range(-60, 0), 0, 1],
    "repeated ends": [0, 0, *range(60), 59],
    "two long runs": [*range(30, 60), *range(30)],
    "many runs": [*range(60)] * 40,
    "one short run": [5, 6, 7],
}


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_taken_past_the_caches(threads, monkeypatch):
    monkeypatch.setattr(indexing, "cache_bytes", lambda: 0)
    assert_bits(*(taken((70, width), 0, (100,)) for width in (16, 32, 50)), num_threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_of_indices_along_the_innermost_axis_are_taken(threads):
    x = values((70, 60))
    cases = [(lambda x, at: ops.take(x, at, 1), x, np.array(run)) for run in RUNS.values()]
    assert_bits(*cases, num_threads=threads)


def test_gradients_of_nan_and_infinity_stay_where_they_belong():
    dy = np.array([[np.nan, 1], [np.inf, 2], [-np.inf, 3]], "float32")
    gradient, *_ = gradient_of_taken((4, 2), 0, (3,))
    ((actual, expected),) = both([(gradient, dy, np.array([3, 1, 1]))])
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(actual[:, 0], [0, np.nan, 0, np.nan])  # infinity less infinity


CHANGED = {
    "take": lambda w, at: w - ops.take(w, at[:, 0], 0)[:1],
    "gradient of take": lambda w, at: w - mg.grad(ops.take(w, at[:, 0], 0).sum(), [w])[0],
    "gather": lambda w, at: w + ops.gather(w, 0, at)[:1],
    "scatter": lambda w, at: ops.scatter(w, 0, at, 5.0),
    "scatter_add": lambda w, at: ops.scatter_add(w, 0, at, 5.0),
    "index_add": lambda w, at: ops.index_add(w, 0, at[:, 0], np.full((4, 3), 5.0, "float32")),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_an_index_out_of_range_is_refused_before_a_parameter_changes(change):
    w, at = mg.Parameter(np.ones((10, 3), "float32")), mg.input("at", (4, 3), "int64")
    step = mg.comp_graph("cpu").compile([at], at.sum(), updates={w: change(w, at)})
    for bad in (10, -11, 2**62):
        wrong = np.array([[0] * 3, [9] * 3, [bad, 0, 0], [-10] * 3])
        with pytest.raises(mg.GraphError, match=rf"{bad} at \(2,( 0)?\) is not in -10 \.\.\. 9"):
            step(wrong)
        np.testing.assert_array_equal(w.numpy(), np.ones((10, 3)))


# ---------------------------------------------------------------- sorting

ROWS = {  # shape, axis
    "short": ((300, 17), 1),
    "one element": ((3, 1), 1),
    "as long as insertion sorts": ((4, 64), 1),
    "sorted by bytes": ((5, 65), 1),
    "columns": ((200, 6), 0),
    "in between": ((2, 700, 3), 1),
    "one long row": ((70_000,), 0),
}


def numbers(shape, dtype):
    """Numbers with ties, and of floats NaN, infinities and both zeros."""
    x = (RNG.integers(-300, 300, shape) / 3).astype(np.dtype(dtype))
    if np.dtype(dtype).kind in "fV":
        for i, special in enumerate((np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0)):
            x.reshape(-1)[i::13] = special
    return x


@pytest.mark.parametrize("descending", [False, True])
def test_elements_of_every_type_are_sorted(descending):
    ways = (
        lambda x: ops.argsort(x, 1, descending),
        lambda x: ops.sort(x, 1, descending),
        lambda x: ops.topk(x, 4, 1, descending)[1],
    )
    shapes = (3, 50), (3, 300)
    xs = [numbers(shape, dtype) for dtype in DTYPES for shape in shapes]
    assert_bits(*itertools.product(ways, xs))


@pytest.mark.parametrize("threads", [1, 5])
def test_rows_of_every_length_are_sorted(threads):
    cases = []
    for shape, axis in ROWS.values():
        x, n = numbers(shape, "float32"), shape[axis]
        cases.append((functools.partial(ops.argsort, axis=axis), x))
        for k in {1, n // 64, n // 2} - {0}:  # by a heap, and of all
            cases.append((lambda x, k=k, axis=axis: ops.topk(x, k, axis)[1], x))
    assert_bits(*cases, num_threads=threads)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_places_in_sorted_rows_are_numpys(dtype, side):
    search = functools.partial(lambda x, v, side: ops.searchsorted(x, v, side), side=side)
    rows = numbers((4, 9), dtype)
    row = np.sort(numbers(400, dtype))
    assert_bits((search, row, numbers((30, 3), dtype)), (search, np.sort(rows), rows))


# ---------------------------------------------------------------- linear interpolation

BLENDED = {  # of x, and the axis
    "a vector": ((70,), 0),
    "rows": ((50, 33), 0),
    "columns": ((6, 50), 1),
    "in between": ((3, 20, 5), 1),
    "for several threads": ((300, 20, 128), 1),
    "one element": ((4, 1, 3), 1),
}


def blended(shape, axis, dtype, count):
    """Return the cases of a mean of two elements each along an axis, and of its gradient."""
    n, rows = shape[axis], (*shape[:axis], count, *shape[axis + 1 :])
    share = RNG.integers(0, 9, count) / 8  # times integers, these are added up without rounding
    places = [RNG.integers(0, n, count).astype(np.int32) for _ in range(2)]
    operands = [constant(v) for v in (*places, share.astype(dtype))]
    return (
        (lambda x: Blend(axis)(x, *operands), RNG.normal(size=shape).astype(dtype)),
        (lambda dy: BlendBackward(axis, n)(dy, *operands), values(rows, dtype)),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 5])
def test_means_of_two_elements_and_their_gradients(threads, dtype):
    cases = [blended(*row, dtype, count) for row in BLENDED.values() for count in (1, 37)]
    assert_bits(*(each for pair in cases for each in pair), num_threads=threads)


def test_floats_of_16_bits_are_blended_in_float32():
    for dtype in ("float16", "bfloat16"):
        x = RNG.normal(size=(3, 8)).astype(np.dtype(dtype))
        assert_bits((lambda x: ops.interpolate(x[None], 20, mode="linear"), x))


@pytest.mark.parametrize(
    "places", [(np.int32([0, 3]), np.int32([1, 1])), (np.int32([0]), -np.ones(1, "i4"))]
)
def test_an_index_out_of_range_of_a_blend_is_left_to_numpy_which_refuses_it(places):
    share = np.zeros(len(places[0]), "float32")
    x = mg.input("x", (3,))
    step = mg.comp_graph().compile([x], Blend(0)(x, *map(constant, (*places, share))))
    with pytest.raises(mg.GraphError, match="index"):
        step(np.ones(3))


# ---------------------------------------------------------------- argmax

LARGEST = {  # the array, and the axis
    "one element": ((1,), 0),
    "short rows": ((600, 10), 1),
    "the longest short rows": ((5, 48), 1),
    "the shortest long rows": ((5, 49), 1),
    "rows of whole vectors": ((3, 128), 1),
    "rows that end within a vector": ((4, 1000), 1),
    "columns": ((9, 300), 0),
    "columns of images": ((3, 21, 17, 20), 1),
    "all of a long array": ((70_000,), 0),
}


def assert_largest(make, **options):
    """The index of the largest element of an array of every shape is NumPy's."""
    cases = [(functools.partial(ops.argmax, axis=axis), make(s)) for s, axis in LARGEST.values()]
    assert_bits(*cases, **options)


def special(shape, value, share):
    x = RNG.standard_normal(shape).astype("float32")
    x[RNG.random(shape) < share] = value
    return x


def test_argmax_is_the_first_of_the_largest():
    for dtype in ("float32", "float64", "uint8", "int64", "bool"):
        end = 2 if dtype == "bool" else 100
        assert_largest(lambda s, t=dtype, n=end: RNG.integers(0, n, s).astype(t))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_nan_is_the_largest(value, threads):
    for share in (0.1, 1):
        assert_largest(lambda s, share=share: special(s, value, share), num_threads=threads)


def test_any_byte_but_0_is_true_to_argmax():
    for shape, axis in LARGEST.values():
        x = RNG.choice(np.array([0, 0, 0, 1, 2, 255], np.uint8), shape)
        node = mg.input("x", shape, "bool")
        function = mg.comp_graph("cpu").compile([node], ops.argmax(node, axis))
        np.testing.assert_array_equal(function(x.view(bool)), np.argmax(x != 0, axis))
