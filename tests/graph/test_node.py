"""Expressions: their properties, identity and operators."""

import itertools
import re

import numpy as np
import pytest
from lines import ARRAY, value
from samples import real

import minigraph as mg
from minigraph.graph import BOOL, DTYPES, Node, Spec, as_dtype
from minigraph.ops.arithmetic import Add

# ---------------------------------------------------------------- properties


def test_shape_and_dtype_are_known_at_once():
    x = mg.input("x", shape=(2, 3), dtype="int8")
    assert (x.shape, x.dtype, x.ndim, x.size, x.name) == ((2, 3), np.int8, 2, 6, "x")
    y = (x + 1.5).sum(0)
    assert (y.shape, y.dtype, y.ndim, y.size, y.name) == ((3,), np.float64, 1, 3, y.op.name)
    assert mg.input("x", 4).shape == (4,)
    assert mg.input("x", (np.int64(2), 0)).shape == (2, 0)
    assert mg.input("x", [2]).dtype == np.float32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_have_names_types_and_either_byte_order(dtype):
    assert as_dtype(dtype) == as_dtype(dtype.name) == as_dtype(dtype.type) == dtype
    if dtype.kind in "iuf":
        assert as_dtype(dtype.newbyteorder(">")) == dtype
        assert as_dtype(dtype.newbyteorder(">")).isnative


def test_a_spec_prints_as_dtype_and_shape():
    assert str(Spec((2, 3))) == "float32[2,3]"
    assert str(Spec((), BOOL)) == "bool[]"
    assert (Spec((2, 3)).size, Spec((2, 3)).nbytes, Spec(()).size) == (6, 24, 1)


# ---------------------------------------------------------------- identity


def test_comparing_expressions_is_elementwise():
    x, y = mg.input("x", (2,)), mg.input("y", (2,))
    for node in (x == y, x != y, x < y, x <= y, x > y, x >= y):
        assert isinstance(node, Node)
        assert node.dtype == BOOL
    np.testing.assert_array_equal(value(x == y, x=np.ones(2), y=np.array([1, 2])), [True, False])


def test_expressions_are_keys_by_identity():
    x, y = mg.input("x", (2,)), mg.input("x", (2,))
    table = {x: 1, y: 2}
    assert (table[x], table[y], len({x, y, x})) == (1, 2, 2)


def test_equal_ops_are_equal_and_inputs_tell_nodes_apart():
    x = mg.input("x", (2,))
    one, other = x + x, x + x
    assert one is not other
    assert one.op == other.op == Add()
    assert hash(one.op) == hash(other.op)


def test_replacing_inputs_by_themselves_gives_the_node_itself():
    x, y = mg.input("x", (2,)), mg.input("y", (2,))
    z = x + y
    assert z.replace((x, y)) is z
    swapped = z.replace((y, x))
    assert swapped is not z
    assert (swapped.source, swapped.specs, swapped.op) == (z.source, z.specs, z.op)


# ---------------------------------------------------------------- operators


OPERATORS = """
a + x; a - x; a * x; a / x; a // x; a % x; abs(a) ** x; a @ x
a < x; a <= x; a > x; a >= x; a == x; a != x
(a > 0) & (x > 0); (a > 0) | (x > 0); (a > 0) ^ (x > 0)
"""


@pytest.mark.parametrize("left", [ARRAY, ARRAY[0], np.float64(2.5), np.array(2.5), 2, 2.5])
def test_operators_take_arrays_and_numbers_on_either_side(left):
    x = mg.input("x", (2, 2), "float64")
    calls = re.split("[;\n] *", OPERATORS.strip())
    for call, names in itertools.product(calls, (("a", "x"), ("x", "a"))):
        if not np.ndim(left) and "@" in call:
            continue  # there is no product with a number
        scope = dict(zip(names, (left, x), strict=True))
        node = eval(call, scope)
        assert isinstance(node, Node)
        with np.errstate(all="ignore"):
            want = eval(call, dict(zip(names, (left, ARRAY + 1), strict=True)))
        np.testing.assert_allclose(value(node, x=ARRAY + 1), want, err_msg=call)
        assert node.dtype == want.dtype, call


def test_unary_operators():
    x = mg.input("x", (2, 2), "float64")
    assert +x is x
    np.testing.assert_array_equal(value(-x, x=ARRAY), -ARRAY)
    np.testing.assert_array_equal(value(abs(x), x=ARRAY), abs(ARRAY))
    np.testing.assert_array_equal(value(~(x > 0), x=ARRAY), ~(ARRAY > 0))


def test_an_expression_is_a_sequence_of_its_rows():
    x = mg.input("x", (2, 3), "float64")
    rows = list(x)
    assert (len(x), [r.shape for r in rows]) == (2, [(3,), (3,)])
    first, second = x
    np.testing.assert_array_equal(
        value(second - first, x=real(2, 3)), real(2, 3)[1] - real(2, 3)[0]
    )


def test_transposes():
    x = mg.input("x", (2, 3, 4))
    assert x.T.shape == x.transpose().shape == x.transpose(None).shape == (4, 3, 2)
    assert x.transpose(1, 0, 2).shape == x.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert mg.input("v", (3,)).T.shape == (3,)
    assert mg.input("s", ()).T.shape == ()
