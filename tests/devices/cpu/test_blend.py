"""The kernels of linear interpolation and of its gradient."""

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph import ops
from minigraph.graph import constant
from minigraph.ops.interpolation import Blend, BlendBackward

pytestmark = needs_compiler

SHAPES = {  # of x, and the axis
    "a vector": ((70,), 0),
    "rows": ((50, 33), 0),
    "columns": ((6, 50), 1),
    "in between": ((3, 20, 5), 1),
    "for several threads": ((300, 20, 128), 1),
    "one element": ((4, 1, 3), 1),
}


def both(build, x, threads=2):
    """Return what a native kernel computes, and what the op means."""
    node = mg.input("x", x.shape, x.dtype)
    found = []
    for device in ("cpu", "reference"):
        function = mg.comp_graph(device, {"num_threads": threads}).compile([node], build(node))
        made = {made for op, made, _ in function.report().steps if op.startswith("blend")}
        assert made <= ({"c", "c in float32"} if device == "cpu" else {"numpy"})
        found.append(function(x))
    return found


def where(n, count, dtype="float32"):
    rng = np.random.default_rng(0)
    low, high = (rng.integers(0, n, count).astype(np.int32) for _ in range(2))
    share = rng.integers(0, 9, count) / 8  # times integers, these are added up without rounding
    return [constant(v) for v in (low, high, share.astype(dtype))]


@pytest.mark.parametrize("count", [1, 37])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("shape", "axis"), SHAPES.values(), ids=SHAPES)
def test_means_and_gradients_have_the_bits_of_numpy(shape, axis, threads, dtype, count):
    places = where(shape[axis], count, dtype)
    x = np.random.default_rng(1).normal(size=shape).astype(dtype)
    found, wanted = both(lambda x: Blend(axis)(x, *places), x, threads)
    assert found.tobytes() == wanted.tobytes()
    dy = np.random.default_rng(2).integers(-99, 99, wanted.shape).astype(dtype)
    back = BlendBackward(axis, shape[axis])
    found, wanted = both(lambda dy: back(dy, *places), dy, threads)
    assert found.shape == x.shape
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_are_blended_in_float32(dtype):
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(mg.input("x", (), dtype).dtype)
    found, wanted = both(lambda x: ops.interpolate(x[None], 20, mode="linear"), x)
    assert found.dtype == x.dtype
    assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    "places", [(np.int32([0, 3]), np.int32([1, 1])), (np.int32([0]), -np.ones(1, "i4"))]
)
def test_a_place_out_of_range_is_left_to_numpy_which_refuses_it(places):
    share = np.zeros(len(places[0]), "float32")
    x = mg.input("x", (3,))
    y = Blend(0)(x, *map(constant, (*places, share)))
    step = mg.comp_graph().compile([x], y)
    with pytest.raises(mg.GraphError, match="place"):
        step(np.ones(3))
