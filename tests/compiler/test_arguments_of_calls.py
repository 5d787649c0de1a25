"""Arguments of a call: their order and names, and the accepted values.

Wrong ones are in `tests/wrong_calls/functions.txt`.
"""

import ml_dtypes
import numpy as np
import pytest
from small_functions import difference, increment, real

import minigraph as mg

# ---------------------------------------------------------------- which argument is which


def test_arguments_go_by_position_or_by_name(cg):
    function = difference(cg)
    one, two, three = np.full(2, 1), np.full(2, 2), np.full(2, 3)
    for result in (
        function(one, two, three),
        function(a=one, b=two, c=three),
        function(c=three, a=one, b=two),
        function(one, two, c=three),
        function(one, c=three, b=two),
    ):
        np.testing.assert_array_equal(result, [321, 321])


def test_an_input_may_be_called_self(cg):
    x = mg.input("self", (2,))
    np.testing.assert_array_equal(cg.compile([x], x + 1)(self=[1, 2]), [2, 3])


# ---------------------------------------------------------------- what an argument may be


@pytest.mark.parametrize(
    ("dtype", "taken"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("int64", "float32"),
        ("uint8", "float32"),
        ("bool", "float32"),
        ("float32", "float64"),
        ("float32", "float16"),
        ("float32", "bfloat16"),
        ("int64", "int8"),
        ("bool", "int64"),
        ("uint8", "int32"),
        ("uint64", "int32"),
    ],
)
def test_an_argument_is_cast_by_the_same_kind_rule(cg, dtype, taken):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    y = increment(cg, (3,), taken)(np.array([0, 1, 1], dtype))
    assert y.dtype == mg.input("x", (3,), taken).dtype
    np.testing.assert_array_equal(y.astype("float64"), [1, 2, 2])


def misaligned(x):
    memory = np.empty(x.nbytes + 1, np.uint8)
    shifted = memory[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    assert not shifted.flags.aligned
    return shifted


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "contiguous": lambda x: x.copy(),
    "Fortran order": np.asfortranarray,
    "every second element": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "part of a larger array": lambda x: np.pad(x, 3)[3:-3, 3:-3],
    "read only": read_only,
    "big endian": lambda x: x.astype(">f4"),
    "little endian": lambda x: x.astype("<f4"),
    "misaligned": misaligned,
    "float64": lambda x: x.astype(np.float64),
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(map(tuple, x.tolist())),
    "list of arrays": list,
    "masked array": lambda x: np.ma.masked_array(x),
    "memoryview": memoryview,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_argument_may_lie_in_memory_in_any_way(cg, layout):
    value = real(4, 5)
    function = increment(cg, (4, 5))
    argument = LAYOUTS[layout](value)
    np.testing.assert_array_equal(function(argument), value + 1)
    np.testing.assert_array_equal(np.asarray(argument, np.float32), value)


def test_a_broadcast_argument_is_read_right(cg):
    argument = np.broadcast_to(real(5), (4, 5))
    np.testing.assert_array_equal(increment(cg, (4, 5))(argument), argument + 1)


@pytest.mark.parametrize("value", [2.0, 2, True, np.float32(2), np.int8(2), np.array(2.0)])
def test_an_argument_without_axes_is_a_number(cg, value):
    y = increment(cg, ())(value)
    assert y.shape == ()
    assert y == value + 1


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_an_argument_may_be_empty(cg, shape):
    x = mg.input("x", shape)
    for argument in (np.empty(shape), np.empty(shape, "int64")):
        y, total = cg.compile([x], [x + 1, x.sum()])(argument)
        assert y.shape == shape
        assert total == 0


def test_an_empty_list_has_no_kind(cg):
    x = mg.input("x", (0,), "int32")
    assert cg.compile([x], x + 1)([]).dtype == np.int32


class WithArray:
    def __init__(self, value):
        self.value = value

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value, dtype)


class WithDLPack:
    def __init__(self, value):
        self.value = value

    def __dlpack__(self, **how):
        return self.value.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.value.__dlpack_device__()


class WithInterface:
    def __init__(self, value):
        self.__array_interface__ = value.__array_interface__
        self.value = value


@pytest.mark.parametrize("kind", [WithArray, WithDLPack, WithInterface])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "float64"])
def test_an_argument_may_be_anything_that_turns_into_an_array(cg, kind, layout):
    value = real(4, 5)
    argument = kind(LAYOUTS[layout](value))
    np.testing.assert_array_equal(increment(cg, (4, 5))(argument), value + 1)
    with pytest.raises(mg.ShapeError):
        increment(cg, (5, 4))(argument)
    with pytest.raises(mg.DTypeError):
        increment(cg, (4, 5), "int32")(argument)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool"])
def test_an_argument_may_be_a_torch_tensor(cg, dtype, torch):
    value = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = torch.from_numpy(value)
    np.testing.assert_array_equal(increment(cg, (2, 3))(tensor), value + np.float32(1))
    np.testing.assert_array_equal(increment(cg, (3, 2))(tensor.T), value.T + np.float32(1))
    assert (tensor == torch.from_numpy(value)).all()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda torch: torch.ones(3, requires_grad=True), id="requires_grad"),
        pytest.param(lambda torch: torch.ones(3, device="meta"), id="meta"),
    ],
)
def test_a_tensor_that_has_no_array_is_a_dtype_error(cg, make, torch):
    with pytest.raises(mg.DTypeError, match="input x takes"):
        increment(cg, (3,))(make(torch))
