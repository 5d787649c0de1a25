"""Constants, arrays and parameters: their arguments, copies and values."""

import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from lines import ARRAY, value

import minigraph as mg
from minigraph import DTypeError, ShapeError
from minigraph.graph import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Graph,
    Parameter,
    Spec,
    State,
    aligned_empty,
    as_array,
    as_dtype,
    as_node,
    can_cast,
    constant,
)

# ---------------------------------------------------------------- constants and arrays


class Exporter:
    """An array with DLPack as its only interface."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Convertible:
    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize("wrap", [np.array, Exporter, Convertible, np.ndarray.tolist])
def test_arrays_are_taken_by_dlpack_by_array_and_from_lists(wrap):
    np.testing.assert_array_equal(as_array(wrap(ARRAY)), ARRAY)
    x = mg.input("x", (2, 2), "float64")
    np.testing.assert_array_equal(value(x + wrap(ARRAY), x=ARRAY), 2 * ARRAY)
    np.testing.assert_array_equal(value(wrap(ARRAY) * x, x=ARRAY), ARRAY * ARRAY)


def test_tensors_of_torch_are_taken(torch):
    x = mg.input("x", (2, 2), "float64")
    np.testing.assert_array_equal(value(x + torch.from_numpy(ARRAY), x=ARRAY), 2 * ARRAY)


def test_tensors_of_torch_in_bfloat16_are_taken_as_inputs_and_constants(torch):
    halves = torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16)
    x = mg.input("x", (3,), "bfloat16")
    y = mg.comp_graph("reference").compile([x], (x + halves).astype("float32"))(halves)
    np.testing.assert_array_equal(y, [3.0, -4.0, 6.0])


def test_casts_follow_numpys_same_kind_rule():
    assert as_array(np.ones(2), as_dtype("float16")).dtype == np.float16
    assert as_array([1, 2], as_dtype("float32")).dtype == np.float32
    assert as_array(np.array([1, 2]), as_dtype("int8")).dtype == np.int8
    assert as_array([], as_dtype("int8")).dtype == np.int8
    assert as_array(np.ones(2), as_dtype("bfloat16")).dtype == ml_dtypes.bfloat16
    assert as_array(np.ones(2, ml_dtypes.bfloat16), as_dtype("float32")).dtype == np.float32


def bounds(dtype):
    """Return the least and the largest finite number of a dtype as Python numbers."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    most = 1 if dtype.kind == "b" else float(ml_dtypes.finfo(dtype).max)
    return (0 if dtype.kind == "b" else -most), most


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cast_keeps_each_number_that_fits_and_names_the_first_that_does_not(dtype):
    for taken in DTYPES:
        assert_casts(dtype, taken)


def assert_casts(dtype, taken):
    if not can_cast(dtype, taken):
        with pytest.raises(DTypeError, match=f"{dtype}.*{taken}.*same_kind"):
            as_array(np.zeros(1, dtype), taken)
        return
    (least, most), (low, high) = bounds(dtype), bounds(taken)
    kind = float if dtype in FLOATS else int
    special = (-np.inf, np.inf, np.nan) if dtype in FLOATS else ()
    near = (low - 1, low, low / 2, 0, 1, high / 2, high, high + 1, 2 * high, -2 * high)
    numbers = [least, most, *(kind(n) for n in near if least <= n <= most), *special]
    for number in np.array(numbers, dtype):
        array = np.zeros((2, 3), dtype)
        array[1, 1:] = number
        exact = number.item() if dtype in INTEGERS else float(number)
        with np.errstate(over="ignore"):
            expected = array.astype(taken)
        lost = np.isinf(expected[1, 1]) if taken in FLOATS else expected[1, 1].item() != exact
        if lost and not np.isinf(exact):
            at = re.escape(f"{exact!r} at (1, 1) does not fit into {taken.name}")
            with pytest.raises(DTypeError, match=f"^{at}$"):
                as_array(array, taken)
        else:
            cast = as_array(array, taken)
            assert cast.dtype == taken
            np.testing.assert_array_equal(cast.astype("float64"), expected.astype("float64"))


def test_a_foreign_byte_order_is_read_as_its_numbers():
    x = mg.input("x", (2, 2), "float64")
    swapped = ARRAY.astype(">f8")
    y = x + swapped
    assert y.dtype.isnative
    np.testing.assert_array_equal(value(y, x=ARRAY), 2 * ARRAY)


def test_constants_are_copied_and_cannot_be_written():
    array = np.ones(3)
    node = constant(array)
    array[:] = 5
    np.testing.assert_array_equal(value(node), np.ones(3))
    with pytest.raises(ValueError, match="read-only"):
        node.op.value[0] = 2
    x = mg.input("x", (3,), "float64")
    y = x + array
    array[:] = 7
    np.testing.assert_array_equal(value(y, x=np.zeros(3)), np.full(3, 5))


def test_an_expression_is_its_own_node():
    x = mg.input("x", (2,))
    assert as_node(x) is x
    assert as_node(3).dtype == np.int64
    assert constant(3, "float16").dtype == np.float16


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (1000,)])
@pytest.mark.parametrize("dtype", ["bool", "float32", "float64", "bfloat16"])
def test_aligned_arrays_begin_at_64_bytes(shape, dtype):
    array = aligned_empty(Spec(shape, as_dtype(dtype)))
    assert (array.shape, array.dtype) == (shape, as_dtype(dtype))
    assert array.size == 0 or array.ctypes.data % 64 == 0


# ---------------------------------------------------------------- parameters


def test_a_parameter_copies_what_it_is_given_and_what_it_gives():
    array = np.ones((2, 3), "float32")
    w = mg.Parameter(array, name="w")
    array[:] = 5
    np.testing.assert_array_equal(w.numpy(), np.ones((2, 3)))
    w.numpy()[:] = 5
    np.testing.assert_array_equal(w.numpy(), np.ones((2, 3)))
    assert (w.shape, w.dtype, w.name, w.trainable) == ((2, 3), np.float32, "w", True)
    assert not mg.Parameter(0.0, trainable=False).trainable
    assert mg.Parameter([1.0, 2]).dtype == np.float64
    assert mg.Parameter([1.0, 2], dtype="bfloat16").dtype == ml_dtypes.bfloat16


def test_assigning_is_seen_by_every_graph():
    w = mg.Parameter(np.ones(2, "float32"), "w")
    graphs = [Graph((), (w * 2,)), Graph((), (w + 1,))]
    w.assign([3, 4])
    np.testing.assert_array_equal(graphs[0]()[0], [6, 8])
    np.testing.assert_array_equal(graphs[1]()[0], [4, 5])
    array = np.array([7.0, 8.0])
    w.assign(array)
    array[:] = 0
    np.testing.assert_array_equal(w.numpy(), [7, 8])


def test_assigning_what_does_not_fit_is_an_error_and_changes_nothing():
    w = mg.Parameter(np.ones(2, "int32"), "weights")
    with pytest.raises(ShapeError, match=r"weights.*\(2,\).*\(3,\)"):
        w.assign([1, 2, 3])
    with pytest.raises(ShapeError):
        w.assign(1)
    with pytest.raises(DTypeError, match="weights"):
        w.assign([1.5, 2])
    np.testing.assert_array_equal(w.numpy(), np.ones(2))


def test_a_parameter_may_be_renamed():
    w = mg.Parameter(0.0)
    w.rename("layer.bias")
    assert w.name == "layer.bias"
    assert "parameter layer.bias" in str(Graph((), (w + 1,)))


@pytest.mark.parametrize("level", [0, 3, -3])
def test_parameters_may_share_a_value_whose_memory_moves(level):
    spec = Spec((4,), np.dtype("float32"))
    memory = [aligned_empty(spec) for _ in range(2)]
    memory[0][...] = 1
    state = State(spec)
    state.share_host_memory(memory[0])
    one, two = (Parameter.sharing(state, name) for name in ("one", "two"))
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off"})
    double = cg.compile([], [one * 1], {one: one * 2})
    x = mg.input("x", (None, 4))
    add = cg.compile([x], x + two)
    row = np.zeros((1, 4), "float32")
    assert double()[0].tolist() == [1] * 4 and memory[0].tolist() == [2] * 4
    assert add(row).tolist() == [[2] * 4]
    memory[1][...] = 10
    state.share_host_memory(memory[1])
    for function in (double, add):
        function.bind()
    assert double()[0].tolist() == [10] * 4
    assert memory[1].tolist() == [20] * 4 and memory[0].tolist() == [2] * 4
    assert add(row).tolist() == [[20] * 4]
    assert two.trainable and pickle.loads(pickle.dumps(two)).numpy().tolist() == [20] * 4
