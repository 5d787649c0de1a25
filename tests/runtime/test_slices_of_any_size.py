"""Slices of inputs whose sizes the calls give are NumPy's, and stay within their memory."""

import any_size_programs
import numpy as np
import pytest
from long_runs import long
from needs import needs_compiler
from sized import real

import minigraph as mg
from minigraph import ops

SLICES = {
    "from the end": lambda x: x[-12:],
    "far from the end": lambda x: x[-100_000_000:],
    "steps from the end": lambda x: x[-5::2],
    "up to the last": lambda x: x[-5:-1],
    "all but some": lambda x: x[:-5],
    "beyond the end": lambda x: x[3:100],
    "behind": lambda x: x[5:],
    "first": lambda x: x[:5],
    "every other": lambda x: x[1::2],
    "backwards": lambda x: x[::-2],
    "backwards from the end": lambda x: x[-3::-1],
    "backwards between": lambda x: x[5:2:-1],
    "backwards to the start": lambda x: x[2::-3],
    "middle": lambda x: x[1:-1],
    "empty": lambda x: x[4:2],
    "second half": lambda x: x[x.shape[0] // 2 :],
    "to a size": lambda x: x[: x.shape[0] - 5],
    "from a size": lambda x: x[x.shape[0] - 5 :],
    "beyond a size": lambda x: x[: 2 * x.shape[0]],
    "cut twice": lambda x: x[-7:][1:4],
    "sum of two": lambda x: x[-12:] + x[-12:],
    "halves": lambda x: np.concatenate([x[:5], x[5:]]) + x,
    "with a list": lambda x: x[-5:, [0, 1]],
    "by the other axis": lambda x: x[x.shape[1] :, : x.shape[0]],
}


def joined(expression, x):
    """Return an expression of NumPy applied to a node; `concatenate` is `concat`."""
    return ops.concat([x[:5], x[5:]]) + x if expression is SLICES["halves"] else expression(x)


@pytest.mark.parametrize("name", SLICES)
def test_a_slice_is_cut_to_what_a_call_gives(name):
    expression = SLICES[name]
    x = mg.input("x", (None, 4))
    y = joined(expression, x)
    function = mg.comp_graph("reference").compile([x], [y, *mg.grad((y * y).sum(), [x])])
    for n in (1, 2, 3, 4, 5, 6, 7, 11, 12, 13):
        array = real(n, 4)
        result, gradient = function(array)
        np.testing.assert_array_equal(result, expected := expression(array))
        assert gradient.shape == array.shape
        assert np.square(gradient).sum() >= 4 * np.square(expected).sum() * (1 - 1e-5)


def test_an_array_of_known_shape_is_sliced_up_to_a_symbolic_size():
    x = mg.input("x", (None, 3))
    table = mg.Parameter(real(6, 3))
    y = x[:6] * table[: x.shape[0]]
    function = mg.comp_graph("reference").compile([x], [y, *mg.grad(y.sum(), [table])])
    for n in (1, 4, 6, 9):
        array = real(n, 3, seed=1)
        result, gradient = function(array)
        np.testing.assert_array_equal(result, array[:6] * table.numpy()[:n])
        np.testing.assert_array_equal(gradient[:n], array[:6])
        assert not gradient[n:].any()


def test_a_size_that_is_cut_fits_a_number():
    x = mg.input("x", (None, None))
    y = x[:, :4] @ real(4, 2) + ops.ones((1, 2))
    function = mg.comp_graph("reference").compile([x], y)
    np.testing.assert_allclose(function(real(3, 6)), real(3, 6)[:, :4] @ real(4, 2) + 1, 1e-6)
    with pytest.raises(mg.ShapeError, match="rows of length 3 meet columns of length 4"):
        function(real(3, 3))


@pytest.mark.parametrize("seed", [*range(0, 50, 10), *(long(n) for n in range(50, 2000, 100))])
def test_programs_of_any_size_mean_what_those_of_fixed_sizes_do(seed):
    counts = [any_size_programs.check(s, [(0, "reference")]) for s in range(seed, seed + 10)]
    assert np.sum(counts, 0)[0] > 20


@needs_compiler
@pytest.mark.parametrize("seed", [0, *(long(n) for n in range(6, 600, 6))])
def test_compiled_programs_of_any_size_stay_within_their_memory(seed):
    counts = [any_size_programs.check(s, [(2, "cpu"), (3, "cpu")]) for s in range(seed, seed + 6)]
    assert np.sum(counts)
