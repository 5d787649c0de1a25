"""`comp_graph().compile`: outputs, updates, inputs, devices, and what it refuses."""

import linecache
import re

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops

DEVICES = ["cpu", "reference"]
pytestmark = pytest.mark.parametrize("device", DEVICES)


def real(*size, seed=0):
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def parameter(*size, name="w", seed=1, dtype="float32"):
    return mg.Parameter(real(*size, seed=seed), name, dtype=dtype)


@pytest.fixture
def cg(device):
    return mg.comp_graph(device)


def user_line(error):
    """The line of this file that a message, which has to be one line, points to."""
    message = str(error.value)
    assert "\n" not in message
    (number,) = set(re.findall(rf"{re.escape(__file__)}:(\d+)", message))
    return linecache.getline(__file__, int(number)).strip()


def assert_independent(arrays):
    """No array shares memory with another, nor one of its elements with another of its own."""
    for i, a in enumerate(arrays):
        assert a.flags.writeable
        assert not any(np.shares_memory(a, b) for b in arrays[:i])
        assert not a.size or all(s for n, s in zip(a.shape, a.strides, strict=True) if n > 1)


# ---------------------------------------------------------------- outputs


def test_one_expression_gives_an_array_and_a_list_gives_a_list(cg):
    x = mg.input("x", (3,))
    single = cg.compile([x], x + 1)(np.ones(3))
    several = cg.compile([x], [x + 1])(np.ones(3))
    assert isinstance(single, np.ndarray)
    assert isinstance(several, list)
    np.testing.assert_array_equal(single, [2, 2, 2])
    np.testing.assert_array_equal(several, [single])


@pytest.mark.parametrize("level", [0, 3, -3])
def test_a_dict_of_expressions_gives_a_dict_of_arrays(device, level):
    x = mg.input("x", (3,))
    w = mg.Parameter(np.zeros(3, "float32"))
    outputs = {"loss": (x * w).sum(), "next": x + 1, 7: 2.0}
    cg = mg.comp_graph(device, options={"graph_opt_level": level})
    step = cg.compile([x], outputs, {w: w + 1})
    outputs.clear()  # what the function returns was said when it was compiled
    for call in range(2):
        found = step(np.ones(3))
        assert list(found) == ["loss", "next", 7]
        assert found["loss"] == 3 * call
        np.testing.assert_array_equal(found["next"], [2, 2, 2])
        assert found[7] == 2
    assert cg.compile([x], {})(np.ones(3)) == {}
    with pytest.raises(mg.GraphError, match="compile: "):
        cg.compile([x], {"loss": "no expression"})


def test_outputs_may_come_from_any_iterable(cg):
    x = mg.input("x", (3,))
    results = cg.compile((x,), (x + i for i in range(3)))(np.zeros(3))
    np.testing.assert_array_equal(results, [[0] * 3, [1] * 3, [2] * 3])


def test_a_single_input_needs_no_list(cg):
    x = mg.input("x", (3,))
    np.testing.assert_array_equal(cg.compile(x, x + 1)(np.zeros(3)), [1, 1, 1])


def test_results_have_the_shape_and_dtype_of_their_expressions(cg):
    x = mg.input("x", (2, 3))
    outputs = [x + 1, (x + 1).sum(), x > 0, ops.argmax(x, 0), x.astype("float16"), x[:0]]
    for y, expression in zip(cg.compile([x], outputs)(real(2, 3)), outputs, strict=True):
        assert type(y) is np.ndarray
        assert (y.shape, y.dtype) == (expression.shape, expression.dtype)


def test_there_may_be_no_inputs(cg):
    w = parameter(3)
    np.testing.assert_array_equal(cg.compile([], w + 1)(), w.numpy() + 1)
    np.testing.assert_array_equal(cg.compile(outputs=[w + 1])(), [w.numpy() + 1])


def test_there_may_be_no_outputs(cg):
    x, w = mg.input("x", (3,)), parameter(3)
    step = cg.compile([x], [], {w: x + 1})
    assert step(np.zeros(3)) == []
    np.testing.assert_array_equal(w.numpy(), [1, 1, 1])


def test_there_may_be_nothing_at_all(cg):
    assert cg.compile()() == []


def test_an_input_may_be_unused(cg):
    x, unused = mg.input("x", (3,)), mg.input("unused", (2,))
    function = cg.compile([unused, x], x + 1)
    np.testing.assert_array_equal(function(np.zeros(2), np.ones(3)), [2, 2, 2])
    with pytest.raises(mg.GraphError, match="unused"):
        function(x=np.ones(3))


@pytest.mark.parametrize("number", [3.0, 2, True, np.float32(1.5), np.arange(3), [1.0, 2.0]])
def test_a_number_or_an_array_is_an_output_too(cg, number):
    (y,) = cg.compile([], [number])()
    np.testing.assert_array_equal(y, number)
    assert y.dtype == np.asarray(number).dtype


def test_the_same_expression_twice_gives_two_arrays(cg):
    x = mg.input("x", (3,))
    y = x + 1
    results = cg.compile([x], [y, y, y])(np.ones(3))
    assert_independent(results)
    results[0][...] = 7
    np.testing.assert_array_equal(results[1:], [[2, 2, 2], [2, 2, 2]])


def sources(kind):
    """An expression whose value is kept by the function or its caller, and that value."""
    value = real(2, 3)
    if kind == "input":
        x = mg.input("x", (2, 3))
        return [x], x, [value], value
    if kind == "parameter":
        return [], mg.Parameter(value, "w"), [], value
    if kind == "constant":
        return [], ops.stop_gradient(value), [], value
    x = mg.input("x", (2, 3))
    return [x], x + 1, [value], value + 1


VIEWS = {
    "itself": lambda x: x,
    "transpose": lambda x: x.transpose() if isinstance(x, np.ndarray) else x.T,
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "slice": lambda x: x[:, ::2],
    "reversed": lambda x: x[::-1, ::-1],
    "reshape": lambda x: x.reshape(3, 2),
    "new axis": lambda x: x[:, None],
    "empty": lambda x: x[1:1],
}
SOURCES = ["input", "parameter", "constant", "result"]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_as_output_is_right_and_independent(cg, kind, view):
    inputs, x, args, value = sources(kind)
    function = cg.compile(inputs, [VIEWS[view](x), x, VIEWS[view](x)])
    expected = VIEWS[view](value)
    results = function(*args)
    for y, wanted in zip(results, [expected, value, expected], strict=True):
        np.testing.assert_array_equal(y, wanted)
    assert_independent([*args, *results])
    for y in results:
        y[...] = np.nan
    for y, wanted in zip(function(*args), [expected, value, expected], strict=True):
        np.testing.assert_array_equal(y, wanted)
    if kind == "parameter":
        np.testing.assert_array_equal(x.numpy(), value)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_broadcast_output_is_right_and_independent(cg, kind):
    inputs, x, args, value = sources(kind)
    (y,) = cg.compile(inputs, [ops.broadcast_to(x, (4, 2, 3))])(*args)
    np.testing.assert_array_equal(y, np.broadcast_to(value, (4, 2, 3)))
    assert_independent([*args, y])


def test_a_broadcast_output_beside_its_source_has_elements_of_its_own(cg):
    x = mg.input("x", (3,))
    y = x + 1
    results = cg.compile([x], [ops.broadcast_to(y, (2, 3)), y])(np.zeros(3))
    assert_independent(results)


def test_an_output_that_is_a_parameter_gives_a_copy(cg):
    w = parameter(3)
    old = w.numpy()
    (y,) = cg.compile([], [w])()
    y[...] = 0
    np.testing.assert_array_equal(w.numpy(), old)
    w.assign([1, 2, 3])
    np.testing.assert_array_equal(y, 0)


# ---------------------------------------------------------------- updates


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


@pytest.mark.parametrize(
    ("parameter_dtype", "update_dtype"),
    [("int32", "float32"), ("bool", "int64"), ("uint8", "int32"), ("bool", "float32")],
)
def test_an_update_of_another_kind_is_a_dtype_error(cg, parameter_dtype, update_dtype):
    x = mg.input("x", (3,), update_dtype)
    w = mg.Parameter(np.zeros(3, parameter_dtype), "counter")
    with pytest.raises(mg.DTypeError, match="same_kind") as error:
        cg.compile([x], [], {w: x})
    assert all(word in str(error.value) for word in ("counter", parameter_dtype, update_dtype))
    assert user_line(error).startswith("x = mg.input")


@pytest.mark.parametrize("wrong", [(), (1,), (3, 1), (2,), (1, 3)])
def test_an_update_of_another_shape_is_a_shape_error(cg, wrong):
    w = parameter(3, name="weights")
    with pytest.raises(mg.ShapeError, match=r"weights \(float32\[3\]\)") as error:
        cg.compile([], [], {w: ops.expand_dims(ops.exp(np.ones(wrong)))[0]})
    assert str(list(wrong)).replace(" ", "") in str(error.value)
    assert "ops.exp" in user_line(error)


@pytest.mark.parametrize("value", [None, "text", object(), [[1], [1, 2]]])
def test_what_is_no_expression_is_no_update_and_no_output(cg, value):
    with pytest.raises(mg.DTypeError) as error:
        cg.compile([], [], {parameter(3): value})
    assert "value" in user_line(error)
    with pytest.raises(mg.DTypeError) as error:
        cg.compile([], [value])
    assert "value" in user_line(error)


@pytest.mark.parametrize(
    "make", [lambda: mg.input("x", (3,)), lambda: "w", lambda: parameter(3) + 1]
)
def test_only_a_parameter_can_be_updated(cg, make):
    key = make()
    with pytest.raises(mg.GraphError, match="only a Parameter") as error:
        cg.compile([], [], {key: np.zeros(3)})
    assert "{key: " in user_line(error)


def test_compiling_changes_no_parameter(cg):
    w = parameter(3)
    old = w.numpy()
    cg.compile([], [], {w: w + 1})
    np.testing.assert_array_equal(w.numpy(), old)


# ---------------------------------------------------------------- inputs


def test_an_input_that_is_not_listed_is_an_error(cg):
    x, y = mg.input("x", (3,)), mg.input("forgotten", (2, 3))
    with pytest.raises(mg.GraphError, match=r"forgotten.*not among the inputs") as error:
        cg.compile([x], ops.exp(x + y))
    assert "float32[2,3]" in str(error.value)
    assert user_line(error).startswith("x, y = ")
    w = parameter(2, 3)
    with pytest.raises(mg.GraphError, match="forgotten"):
        cg.compile([x], [x], {w: y})


def test_an_input_of_the_same_name_and_shape_is_another_input(cg):
    x, other = mg.input("x", (3,)), mg.input("x", (3,))
    with pytest.raises(mg.GraphError, match="not among the inputs"):
        cg.compile([other], x + 1)


def test_two_inputs_of_one_name_are_an_error(cg):
    x, other = mg.input("x", (3,)), mg.input("x", (2,))
    for inputs in ([x, other], [x, x]):
        with pytest.raises(mg.GraphError, match="two inputs are called 'x'") as error:
            cg.compile(inputs, x)
        assert "cg.compile" in user_line(error)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x + 1,
        lambda x: parameter(3),
        lambda x: np.ones((3, 3)),
        lambda x: "x",
        lambda x: None,
        lambda x: 3.0,
    ],
)
def test_what_is_no_input_is_an_error(cg, make):
    x = mg.input("x", (3,))
    with pytest.raises(mg.GraphError, match="is no input") as error:
        cg.compile([x, make(x)], x)
    assert "cg.compile" in user_line(error)


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


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:1"])
def test_cuda_is_a_device_error_where_there_is_none(device, name):
    with pytest.raises(mg.DeviceError, match="CUDA") as error:
        mg.comp_graph(name)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["gpu", "cpu:0", "CPU", "", " cpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1\n", 0, b"cpu"]
)
def test_a_device_that_does_not_exist_is_a_device_error(device, name):
    with pytest.raises(mg.DeviceError, match="there is no device") as error:
        mg.comp_graph(name)
    assert repr(name) in str(error.value)
    assert '"cpu"' in str(error.value)
    assert "\n" not in str(error.value)


def test_report_names_the_device(cg, device):
    x = mg.input("x", (3,))
    assert cg.device == device
    assert cg.compile([x], x + 1).report().device == device


def test_missing_memory_is_an_error_that_names_the_largest_results(device):
    x = mg.input("x", (1 << 20, 1 << 22))
    y = ops.exp(x.T @ x)
    with pytest.raises(mg.DeviceError) as error:
        mg.comp_graph(device, {"autotune": "off"}).compile([x], y.sum())
    assert "MiB of intermediate results" in str(error.value)
    assert "The largest: " in str(error.value)
    assert f"at {__file__}:" in str(error.value)


def test_outputs_that_do_not_fit_into_the_memory_are_an_error_that_names_them(device):
    x, w = mg.input("x", (None,)), mg.Parameter(np.zeros(3, "float32"))
    table = x.reshape((-1, 1)) + x.reshape((1, -1))
    step = mg.comp_graph(device).compile([x], [x, table], {w: w + 1})
    with pytest.raises(mg.DeviceError, match="the memory does not suffice for the outputs: ") as no:
        step(np.ones(1 << 23, "float32"))
    assert "float32[8388608,8388608] (268435456 MiB), float32[8388608] (32 MiB)" in str(no.value)
    assert step(np.ones(2))[1].tolist() == [[2, 2], [2, 2]]
    assert w.numpy().tolist() == [1, 1, 1]


def test_an_output_to_copy_that_does_not_fit_into_the_memory_is_an_error(device):
    x = mg.input("x", (1 << 10,))
    repeat = mg.comp_graph(device).compile([x], ops.broadcast_to(x, (1 << 36, 1 << 10)))
    with pytest.raises(mg.DeviceError, match="does not suffice for the outputs: float32"):
        repeat(np.ones(1 << 10))
