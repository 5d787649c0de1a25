"""The kernels of take and of its gradient."""

import numpy as np
import pytest
from native_and_reference import both
from needs import needs_compiler

import minigraph as mg
from minigraph import ops

pytestmark = needs_compiler

SHAPES = {  # of x, the axis, and how many indices
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


def bits(x):
    return x.shape, x.dtype, x.tobytes()


def values(shape, dtype, seed=0):
    """Integers: whichever type they are added up in, the sums are the same."""
    return (np.random.default_rng(seed).normal(size=shape) * 9).round().astype(dtype)


def indices(n, shape, dtype="int64"):
    low = -n if np.dtype(dtype).kind == "i" else 0
    found = np.random.default_rng(1).integers(low, n, shape)
    if n == 90:
        found[::2] = 4
    return found.astype(dtype)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("shape", "axis", "count"), SHAPES.values(), ids=SHAPES)
def test_elements_and_gradients_have_the_bits_of_numpy(shape, axis, count, threads):
    x, at = values(shape, "float32"), indices(shape[axis], count)
    dy = values((*shape[:axis], *count, *shape[axis + 1 :]), "float32", seed=2)
    found, wanted = both(lambda x, at: ops.take(x, at, axis), x, at, threads=threads)
    assert bits(found) == bits(wanted)

    def gradient(dy, at):
        x = mg.Parameter(np.zeros(shape, "float32"))
        return mg.grad((ops.take(x, at, axis) * dy).sum(), [x])[0]

    found, wanted = both(gradient, dy, at, threads=threads)
    assert bits(found) == bits(wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "bool", "int64"])
def test_elements_of_any_type_are_moved(dtype):
    x, at = values((9, 4), dtype), indices(9, (5,))
    found, wanted = both(lambda x, at: ops.take(x, at, 0), x, at)
    assert bits(found) == bits(wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_indices_may_be_any_integers(dtype):
    x, at = values((100, 3), "float32"), indices(100, (50,), dtype)
    found, wanted = both(lambda x, at: ops.take(x, at, 0), x, at)
    assert bits(found) == bits(wanted)


@pytest.mark.parametrize("bad", [10, -11, 2**62])
@pytest.mark.parametrize("what", ["take", "gradient"])
def test_an_index_out_of_range_is_refused_before_a_parameter_changes(what, bad):
    w = mg.Parameter(np.ones((10, 3), "float32"))
    at = mg.input("at", (4,), "int64")
    y = ops.take(w, at, 0)
    new = w - (mg.grad(y.sum(), [w])[0] if what == "gradient" else y[:1])
    step = mg.comp_graph("cpu").compile([at], y.sum(), updates={w: new})
    with pytest.raises(mg.GraphError, match=rf"{bad} at \(2,\) is not in -10 \.\.\. 9"):
        step(np.array([0, 9, bad, -10]))
    np.testing.assert_array_equal(w.numpy(), np.ones((10, 3)))


def test_gradients_of_nan_and_infinity_stay_where_they_belong():
    dy = np.array([[np.nan, 1], [np.inf, 2], [-np.inf, 3]], "float32")
    x = mg.Parameter(np.zeros((4, 2), "float32"))

    def gradient(dy, at):
        return mg.grad((ops.take(x, at, 0) * dy).sum(), [x])[0]

    found, wanted = both(gradient, dy, np.array([3, 1, 1]))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(found[:, 0], [0, np.nan, 0, np.nan])  # infinity less infinity


RUNS = {
    "a reflection": [2, 1, *range(60), 58, 57],
    "negative indices": [*range(-60, 0), 0, 1],
    "repeated ends": [0, 0, *range(60), 59],
    "two long runs": [*range(30, 60), *range(30)],
    "many runs": [*range(60)] * 40,
    "one short run": [5, 6, 7],
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("places", RUNS.values(), ids=RUNS)
def test_runs_of_indices_along_the_innermost_axis_have_the_bits_of_numpy(places, threads):
    x, at = values((70, 60), "float32"), np.array(places)
    found, wanted = both(lambda x, at: ops.take(x, at, 1), x, at, threads=threads)
    assert bits(found) == bits(wanted)
