"""The kernels of indices along an axis, and of sorting."""

import numpy as np
import pytest
from native_and_reference import both
from needs import needs_compiler

import minigraph as mg
from minigraph import ops

pytestmark = needs_compiler

RNG = np.random.default_rng(0)
SHAPES = {  # of x, the axis, and how many indices there are along it
    "rows": ((5, 33), 1, 7),
    "a vector": ((70,), 0, 200),
    "columns": ((50, 21), 0, 9),
    "in between": ((3, 20, 5), 1, 6),
    "for several threads": ((40, 30, 40), 1, 50),
    "one long row": ((50_000,), 0, 40_000),
}


def assert_bits(pair):
    found, wanted = pair
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert found.tobytes() == wanted.tobytes()


def case(shape, axis, count, dtype="float32", index="int64"):
    """Return x, indices, and what may be put there."""
    n = shape[axis]
    rows = (*shape[:axis], count, *shape[axis + 1 :])
    low = -n if np.dtype(index).kind == "i" else 0
    at = RNG.integers(low, n, rows).astype(index)
    # Integers: whichever type they are added up in, the sums are the same.
    x, v = ((RNG.normal(size=size) * 9).round().astype(dtype) for size in (shape, rows))
    return x, at, v


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("shape", "axis", "count"), SHAPES.values(), ids=SHAPES)
def test_all_have_the_bits_of_numpy(shape, axis, count, threads):
    x, at, v = case(shape, axis, count)
    assert_bits(both(lambda x, at: ops.gather(x, axis, at), x, at, threads=threads))
    zeros = np.zeros(shape, "float32")
    assert_bits(both(lambda at, v: ops.scatter_add(zeros, axis, at, v), at, v, threads=threads))
    put = both(lambda x, at, v: ops.scatter(x, axis, at, v), x, at, v, threads=threads)
    assert_bits(put)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "bool", "int64"])
def test_elements_of_any_type_are_moved(dtype):
    x, at, v = case((9, 4), 0, 5, dtype)
    assert_bits(both(lambda x, at: ops.gather(x, 0, at), x, at))
    assert_bits(both(lambda x, at, v: ops.scatter(x, 0, at, v), x, at, v))


@pytest.mark.parametrize("index", ["int8", "uint8", "int32", "uint64"])
def test_indices_may_be_any_integers(index):
    x, at, v = case((100, 3), 0, 50, index=index)
    assert_bits(both(lambda x, at: ops.gather(x, 0, at), x, at))
    assert_bits(both(lambda x, at, v: ops.scatter(x, 0, at, v), x, at, v))


@pytest.mark.parametrize("bad", [10, -11, 2**62])
@pytest.mark.parametrize("name", ["gather", "scatter", "scatter_add"])
def test_an_index_out_of_range_is_refused_before_a_parameter_changes(name, bad):
    w = mg.Parameter(np.ones((10, 3), "float32"))
    at = mg.input("at", (4, 3), "int64")
    new = ops.gather(w, 0, at)[:1] + w if name == "gather" else getattr(ops, name)(w, 0, at, 5.0)
    step = mg.comp_graph("cpu").compile([at], at.sum(), updates={w: new})
    indices = np.zeros((4, 3), "int64")
    indices[2, 1] = bad
    with pytest.raises(mg.GraphError, match=rf"{bad} at \(2, 1\) is not in -10 \.\.\. 9"):
        step(indices)
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
@pytest.mark.parametrize(
    "dtype",
    [
        "float32",
        "float64",
        "float16",
        "bfloat16",
        "bool",
        "int8",
        "uint8",
        "int16",
        "int64",
        "uint32",
    ],
)
def test_elements_of_every_type_are_sorted(dtype, descending):
    for shape in ((3, 50), (3, 300)):
        x = numbers(shape, dtype)
        assert_bits(both(lambda x: ops.argsort(x, 1, descending), x))
        assert_bits(both(lambda x: ops.sort(x, 1, descending), x))
        assert_bits(both(lambda x: ops.topk(x, 4, 1, descending)[1], x))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("shape", "axis"), ROWS.values(), ids=ROWS)
def test_rows_of_every_length_are_sorted(shape, axis, threads):
    x = numbers(shape, "float32")
    assert_bits(both(lambda x: ops.argsort(x, axis), x, threads=threads))
    for k in {1, shape[axis] // 64, shape[axis] // 2} - {0}:  # by a heap, and of all
        assert_bits(both(lambda x: ops.topk(x, k, axis)[1], x, threads=threads))  # noqa: B023


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_places_in_sorted_rows_are_numpys(dtype, side):
    for x, v in ((numbers(400, dtype), numbers((30, 3), dtype)), (numbers((4, 9), dtype),) * 2):
        assert_bits(both(lambda x, v: ops.searchsorted(x, v, side), np.sort(x), v))
