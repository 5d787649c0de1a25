"""`comp_graph().compile`: inputs, updates, devices and errors.

That updates take effect together is a test of random ones, in `program/test_program.py`.
"""

import numpy as np
import pytest
from small_functions import parameter

import minigraph as mg
from minigraph import ops


def test_inputs_keep_the_order_they_are_listed_in(cg):
    x, y = mg.input("x", (3,)), mg.input("y", (3,))
    np.testing.assert_array_equal(cg.compile([y, x], x - y)(np.ones(3), np.zeros(3)), [-1] * 3)


def test_an_input_may_have_any_name(cg):
    x, y = mg.input("a name; with %s", (3,)), mg.input("seed", (3,))
    function = cg.compile([x, y], x - y)
    results = function(**{"a name; with %s": np.ones(3), "seed": np.zeros(3)})
    np.testing.assert_array_equal(results, [1] * 3)


# ---------------------------------------------------------------- several functions, deep graphs


def test_one_graph_compiles_many_functions(cg):
    x, w = mg.input("x", (3,)), parameter(3)
    y = x + w
    both = cg.compile([x], [y, y * w])
    one = cg.compile([x], y)
    np.testing.assert_array_equal(both(np.ones(3))[0], one(np.ones(3)))


def test_depth_is_not_limited_by_the_python_stack(cg):
    x = mg.input("x", (2,))
    y = x
    for _ in range(5000):
        y = y + 1
    np.testing.assert_array_equal(cg.compile([x], y)([0, 1]), [5000, 5001])


# ---------------------------------------------------------------- updates


def test_an_update_that_is_an_output_too_gives_both(cg):
    w = parameter(3)
    new = w * 2
    (y,) = cg.compile([], [new], {w: new})()
    np.testing.assert_array_equal(y, w.numpy())
    y[...] = 0
    assert w.numpy().all()


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


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_cuda_is_a_device_error_where_there_is_none(name):
    with pytest.raises(mg.DeviceError, match="CUDA") as error:
        mg.comp_graph(name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_report_names_the_device(cg, device):
    x = mg.input("x", (3,))
    assert cg.device == device
    assert cg.compile([x], x + 1).report().device == device


of_the_host = pytest.mark.parametrize("device", ["cpu", "reference"])


@of_the_host
def test_missing_memory_is_an_error_that_names_the_largest_results(device):
    x = mg.input("x", (1 << 20, 1 << 22))
    y = ops.exp(x.T @ x)
    with pytest.raises(mg.DeviceError) as error:
        mg.comp_graph(device, {"autotune": "off"}).compile([x], y.sum())
    assert "MiB of intermediate results" in str(error.value)
    assert "The largest: " in str(error.value)
    assert f"at {__file__}:" in str(error.value)


@of_the_host
def test_outputs_that_do_not_fit_into_the_memory_are_an_error_that_names_them(device):
    x, w = mg.input("x", (None,)), mg.Parameter(np.zeros(3, "float32"))
    table = x.reshape((-1, 1)) + x.reshape((1, -1))
    step = mg.comp_graph(device).compile([x], [x, table], {w: w + 1})
    with pytest.raises(mg.DeviceError, match="the memory does not suffice for the outputs: ") as no:
        step(np.ones(1 << 23, "float32"))
    assert "float32[8388608,8388608] (268435456 MiB), float32[8388608] (32 MiB)" in str(no.value)
    assert step(np.ones(2))[1].tolist() == [[2, 2], [2, 2]]
    assert w.numpy().tolist() == [1, 1, 1]


@of_the_host
def test_an_output_to_copy_that_does_not_fit_into_the_memory_is_an_error(device):
    x = mg.input("x", (1 << 10,))
    repeat = mg.comp_graph(device).compile([x], ops.broadcast_to(x, (1 << 36, 1 << 10)))
    with pytest.raises(mg.DeviceError, match="does not suffice for the outputs: float32"):
        repeat(np.ones(1 << 10))
