"""The updates of `comp_graph().compile`: they take effect together."""

import numpy as np
import pytest
from small_functions import parameter, real

import minigraph as mg


def test_updates_take_effect_together(cg):
    v, w = parameter(3, name="v", seed=1), parameter(3, name="w", seed=2)
    old_v, old_w = v.numpy(), w.numpy()
    swap = cg.compile([], [], {v: w, w: v})
    swap()
    np.testing.assert_array_equal([v.numpy(), w.numpy()], [old_w, old_v])
    swap()
    np.testing.assert_array_equal([v.numpy(), w.numpy()], [old_v, old_w])


def test_updates_may_be_views_of_other_parameters(cg):
    v, w = parameter(2, 3, name="v"), parameter(3, 2, name="w", seed=2)
    old_v, old_w = v.numpy(), w.numpy()
    cg.compile([], [], {v: w.T, w: v.T})()
    np.testing.assert_array_equal(v.numpy(), old_w.T)
    np.testing.assert_array_equal(w.numpy(), old_v.T)


@pytest.mark.parametrize(
    "change", [lambda w: w.T, lambda w: w[::-1], lambda w: w[:, ::-1].T, lambda w: w + w.T]
)
def test_a_parameter_may_become_a_view_of_itself(cg, change):
    w = parameter(3, 3)
    old = w.numpy()
    cg.compile([], [], {w: change(w)})()
    np.testing.assert_array_equal(w.numpy(), change(old))


def test_an_output_that_is_a_parameter_gives_the_value_before_the_update(cg):
    w = parameter(3)
    old = w.numpy()
    step = cg.compile([], [w, w * 2, w[:2]], {w: w + 1})
    same, twice, part = step()
    np.testing.assert_array_equal(same, old)
    np.testing.assert_array_equal(twice, old * 2)
    np.testing.assert_array_equal(part, old[:2])
    np.testing.assert_array_equal(w.numpy(), old + 1)
    np.testing.assert_array_equal(step()[0], old + 1)


def test_an_update_sees_the_old_value_of_another_updated_parameter(cg):
    v, w = parameter(3, name="v", seed=1), parameter(3, name="w", seed=2)
    old_v, old_w = v.numpy(), w.numpy()
    cg.compile([], [], {v: v + 1, w: w * v})()
    np.testing.assert_array_equal(v.numpy(), old_v + 1)
    np.testing.assert_array_equal(w.numpy(), old_w * old_v)


def test_an_update_that_is_an_output_too_gives_both(cg):
    w = parameter(3)
    new = w * 2
    (y,) = cg.compile([], [new], {w: new})()
    np.testing.assert_array_equal(y, w.numpy())
    y[...] = 0
    assert w.numpy().all()


def test_one_expression_may_update_several_parameters(cg):
    x = mg.input("x", (3,))
    v, w = parameter(3, name="v"), parameter(3, name="w")
    cg.compile([x], [], {v: x + 1, w: x + 1})(np.zeros(3))
    np.testing.assert_array_equal([v.numpy(), w.numpy()], np.ones((2, 3)))


def test_an_update_may_be_an_input_itself(cg):
    x, w = mg.input("x", (3,)), parameter(3)
    given = real(3)
    cg.compile([x], [], {w: x})(given)
    np.testing.assert_array_equal(w.numpy(), given)
    w.assign([0, 0, 0])
    assert given.all()


@pytest.mark.parametrize("value", [0.5, 3, np.float64(2), np.ones(())])
def test_an_update_may_be_a_number(cg, value):
    w = mg.Parameter(np.float32(1), "w")
    cg.compile([], [], {w: value})()
    assert w.numpy() == value
    assert w.numpy().dtype == np.float32


@pytest.mark.parametrize(
    ("parameter_dtype", "update_dtype"),
    [
        ("float32", "float64"),
        ("float32", "float16"),
        ("float32", "int64"),
        ("float32", "bool"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("int32", "int64"),
        ("int64", "uint8"),
    ],
)
def test_an_update_is_cast_to_the_parameter_by_the_same_kind_rule(
    cg, parameter_dtype, update_dtype
):
    x = mg.input("x", (3,), update_dtype)
    w = mg.Parameter([1, 1, 1], "w", dtype=parameter_dtype)
    cg.compile([x], [], {w: x})(np.array([0, 1, 1], x.dtype))
    assert w.numpy().dtype == w.dtype
    np.testing.assert_array_equal(w.numpy().astype("float32"), [0, 1, 1])


def test_compiling_changes_no_parameter(cg):
    w = parameter(3)
    old = w.numpy()
    cg.compile([], [], {w: w + 1})
    np.testing.assert_array_equal(w.numpy(), old)
