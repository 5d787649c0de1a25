"""Dtypes of results: as in NumPy, bfloat16 included."""

import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, operand_dtypes

import minigraph as mg
from minigraph import DTypeError, ops
from minigraph.graph import BFLOAT16, DTYPES, Graph
from minigraph.ops.elementwise import kind

NUMPY_DTYPES = [d for d in DTYPES if d != BFLOAT16]


@pytest.mark.parametrize("left", NUMPY_DTYPES, ids=str)
def test_dtypes_promote_as_in_numpy(left):
    x = mg.input("x", (2,), left)
    for right in NUMPY_DTYPES:
        want = np.result_type(left, right)
        assert ops.maximum(x, mg.input("y", (), right)).dtype == want
        assert ops.maximum(np.zeros((), right), x).dtype == want
        assert ops.concat([x, mg.input("y", (3,), right)]).dtype == want
        angle = np.arctan2(np.ones(2, left), np.ones(2, right))
        assert ops.atan2(x, mg.input("y", (2,), right)).dtype == angle.dtype


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
@pytest.mark.parametrize("number", [True, 2, 2.5, float("nan"), np.float32(1), np.int16(1)])
def test_numbers_promote_as_in_numpy(number, dtype):
    x = mg.input("x", (2,), dtype)
    assert ops.maximum(x, number).dtype == np.result_type(dtype, number)
    assert ops.maximum(number, x).dtype == np.result_type(dtype, number)
    assert ops.hypot(x, number).dtype == np.hypot(np.ones(2, dtype), number).dtype


def test_bfloat16_wins_over_integers_and_numbers_and_yields_to_wider_floats():
    x = mg.input("x", (2,), "bfloat16")
    for dtype in NUMPY_DTYPES:
        want = BFLOAT16 if kind(dtype) != "f" else np.result_type(np.float32, dtype)
        assert ops.maximum(x, mg.input("y", (), dtype)).dtype == want
    for number in (True, 2, 2.5):
        assert ops.maximum(x, number).dtype == BFLOAT16
    for fn in (ops.exp, ops.mean, ops.softmax, ops.negative):
        assert fn(x).dtype == BFLOAT16


# By the Array API standard integers have no reciprocal, and NumPy has a square of bools alone.
NOT_NUMPYS = {"reciprocal": "iub", "square": "b"}


# Functions of operands of one dtype that NumPy has, too.
COMMON = sorted(
    {op.name for op in ELEMENTWISE.values()} & {*vars(np)} - {"astype", "where", "clip"}
)


@pytest.mark.parametrize("name", COMMON)
def test_elementwise_results_have_numpys_dtype(name):
    ours, theirs = getattr(ops, name), getattr(np, name)
    for dtype in NUMPY_DTYPES:
        if kind(dtype) in NOT_NUMPYS.get(name, ""):
            continue
        arity = len(operand_dtypes(ELEMENTWISE.get(name), dtype)) if name in ELEMENTWISE else 1
        try:
            result = ours(*[mg.input("x", (2,), dtype)] * arity).dtype
        except DTypeError:
            continue  # NumPy takes more
        with np.errstate(all="ignore"):
            assert result == theirs(*[np.ones(2, dtype)] * arity).dtype, dtype


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint64", "float16", "float32"])
@pytest.mark.parametrize("number", [300, -1, -1000, 2**63, 1e6, -1e39, np.inf])
def test_a_number_that_a_dtype_does_not_hold_is_compared_as_numbers_are(dtype, number):
    x = mg.input("x", (3,), dtype)
    values = np.array([0, 1, 100], dtype)
    compared = [x < number, number < x, x <= number, x >= number, x == number, x != number]
    v = values.astype(object)
    wanted = [v < number, number < v, v <= number, v >= number, v == number, v != number]
    for result, expected in zip(Graph((x,), compared)(values), wanted, strict=True):
        np.testing.assert_array_equal(result, expected.astype(bool))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float32"])
def test_a_bound_beyond_all_numbers_of_a_dtype_leaves_a_side_open(dtype):
    values = np.array([0, 1, 100], dtype)
    for low, high in ((-1e300, 10**9), (1, 1e300), (-(10**12), 5)):
        x = mg.input("x", (3,), dtype)
        result = Graph((x,), (ops.clip(x, low, high),))(values)[0]
        np.testing.assert_array_equal(result, np.clip(values.astype("float64"), low, high))
