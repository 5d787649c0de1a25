"""The outputs of `comp_graph().compile`: their form, and that nothing else shares their memory."""

import numpy as np
import pytest
from small_functions import parameter, real

import minigraph as mg
from minigraph import ops


def assert_independent(arrays):
    """Assert that no two elements of these arrays share memory."""
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
        results = step(np.ones(3))
        assert list(results) == ["loss", "next", 7]
        assert results["loss"] == 3 * call
        np.testing.assert_array_equal(results["next"], [2, 2, 2])
        assert results[7] == 2
    assert cg.compile([x], {})(np.ones(3)) == {}


def test_outputs_may_come_from_any_iterable(cg):
    x = mg.input("x", (3,))
    results = cg.compile((x,), (x + i for i in range(3)))(np.zeros(3))
    np.testing.assert_array_equal(results, [[0] * 3, [1] * 3, [2] * 3])


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
def test_views_as_outputs_are_right_and_independent(cg, kind):
    inputs, x, args, value = sources(kind)
    function = cg.compile(inputs, [view(x) for _ in range(2) for view in VIEWS.values()])
    expected = [view(value) for _ in range(2) for view in VIEWS.values()]
    results = function(*args)
    for y, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(y, wanted)
    assert_independent([*args, *results])
    for y in results:
        y[...] = np.nan
    for y, wanted in zip(function(*args), expected, strict=True):
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


@pytest.mark.parametrize(
    "result",
    [lambda x: ops.repeat(x, 3, axis=0), lambda x: ops.tile(x, (2, 3)), lambda x: x.T.reshape(-1)],
    ids=["repeated", "tiled", "transposed and flat"],
)
def test_a_reshape_that_copies_writes_where_the_caller_gets_its_result(result):
    x = mg.input("x", (8, 16))
    f = mg.comp_graph("cpu", {"autotune": "off"}).compile([x], result(x))
    f(np.zeros((8, 16), "float32"))
    described = f.describe()
    space = {buffer.id: buffer.space for buffer in described.buffers}
    (step,) = described.steps
    assert [space[buffer] for buffer in step.writes if space[buffer] != "arena"] == ["output"]
