"""Expressions and graphs: what a node is, what operators make of it, how a graph prints."""

import inspect
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from samples import real

import minigraph as mg
from minigraph import DTypeError, GraphError, ShapeError, ops
from minigraph.graph import (
    BOOL,
    DTYPES,
    Graph,
    Location,
    Node,
    Op,
    Spec,
    aligned_empty,
    as_array,
    as_dtype,
    as_node,
    constant,
    here,
    toposort,
)
from minigraph.graph.builder import builder
from minigraph.graph.location import gradient_of, layer
from minigraph.ops.arithmetic import Add
from minigraph.ops.normalization import BatchNorm


def line():
    return inspect.currentframe().f_back.f_lineno


def value(node, **feeds):
    names = {n.name: n for n in toposort([node]) if n.op.__class__.__name__ == "Input"}
    return Graph(tuple(names[k] for k in feeds), (node,))(*feeds.values())[0]


# ---------------------------------------------------------------- what is known of an expression


def test_shape_and_dtype_are_known_at_once():
    x = mg.input("x", shape=(2, 3), dtype="int8")
    assert (x.shape, x.dtype, x.ndim, x.size, x.name) == ((2, 3), np.int8, 2, 6, "x")
    y = (x + 1.5).sum(0)
    assert (y.shape, y.dtype, y.ndim, y.size, y.name) == ((3,), np.float64, 1, 3, y.op.name)
    assert mg.input("x", 4).shape == (4,)
    assert mg.input("x", (np.int64(2), 0)).shape == (2, 0)
    assert mg.input("x", [2]).dtype == np.float32


@pytest.mark.parametrize(
    ("kind", "args"),
    [
        (GraphError, ("", (2,))),
        (GraphError, (3, (2,))),
        (ShapeError, ("x", (2, -1))),
        (ShapeError, ("x", (2.0,))),
        (ShapeError, ("x", -1)),
        (DTypeError, ("x", (2,), "complex64")),
        (DTypeError, ("x", (2,), "nonsense")),
        (DTypeError, ("x", (2,), "datetime64[s]")),
        (DTypeError, ("x", (2,), object)),
    ],
)
def test_an_input_that_cannot_be_is_an_error(kind, args):
    with pytest.raises(GraphError) as caught:
        mg.input(*args)
    assert type(caught.value) is kind


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


def test_an_expression_has_no_truth_value():
    x = mg.input("x", (2,))
    with pytest.raises(GraphError, match=rf"no truth value.*test_graph.py:{line() + 1}"):
        bool(x > 0)
    with pytest.raises(GraphError, match="where"):
        assert x in [mg.input("y", (2,))]


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

ARRAY = np.array([[1.0, -2.0], [3.0, 0.5]])
OPERATORS = [
    "a + x",
    "a - x",
    "a * x",
    "a / x",
    "a // x",
    "a % x",
    "abs(a) ** x",
    "a @ x",
    "a < x",
    "a <= x",
    "a > x",
    "a >= x",
    "a == x",
    "a != x",
    "(a > 0) & (x > 0)",
    "(a > 0) | (x > 0)",
    "(a > 0) ^ (x > 0)",
]


@pytest.mark.parametrize(
    ("call", "left"),
    [
        (call, left)
        for left in (ARRAY, ARRAY[0], np.float64(2.5), np.array(2.5), 2, 2.5)
        for call in OPERATORS
        if np.ndim(left) or "@" not in call  # there is no product with a number
    ],
)
def test_operators_take_arrays_and_numbers_on_either_side(call, left):
    x = mg.input("x", (2, 2), "float64")
    for names in (("a", "x"), ("x", "a")):
        scope = dict(zip(names, (left, x), strict=True))
        node = eval(call, scope)
        assert isinstance(node, Node)
        with np.errstate(all="ignore"):
            want = eval(call, dict(zip(names, (left, ARRAY + 1), strict=True)))
        np.testing.assert_allclose(value(node, x=ARRAY + 1), want)
        assert node.dtype == want.dtype


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
    for fn in (len, list):
        with pytest.raises(TypeError):
            fn(mg.input("s", ()))


def test_transposes():
    x = mg.input("x", (2, 3, 4))
    assert x.T.shape == x.transpose().shape == x.transpose(None).shape == (4, 3, 2)
    assert x.transpose(1, 0, 2).shape == x.transpose((1, 0, 2)).shape == (3, 2, 4)
    assert mg.input("v", (3,)).T.shape == (3,)
    assert mg.input("s", ()).T.shape == ()


def test_numpys_functions_do_not_take_expressions():
    with pytest.raises(TypeError):
        np.add(np.ones(2), mg.input("x", (2,)))


# ---------------------------------------------------------------- constants and arrays


class Exporter:
    """What speaks DLPack and nothing else."""

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


@pytest.mark.parametrize("bad", ["text", object(), [[1], [2, 3]], 1j, np.ones(2, "M8[s]"), None])
def test_what_is_no_array_of_ours_is_a_dtype_error(bad):
    with pytest.raises(DTypeError):
        as_array(bad)


def test_casts_follow_numpys_same_kind_rule():
    assert as_array(np.ones(2), as_dtype("float16")).dtype == np.float16
    assert as_array([1, 2], as_dtype("float32")).dtype == np.float32
    assert as_array(np.array([1, 2]), as_dtype("int8")).dtype == np.int8
    assert as_array([], as_dtype("int8")).dtype == np.int8
    assert as_array(np.ones(2), as_dtype("bfloat16")).dtype == ml_dtypes.bfloat16
    assert as_array(np.ones(2, ml_dtypes.bfloat16), as_dtype("float32")).dtype == np.float32
    for given, dtype in (("float64", "int64"), ("int64", "uint8"), ("int8", "bool")):
        with pytest.raises(DTypeError, match=f"{given}.*{dtype}.*same_kind"):
            as_array(np.ones(2, given), as_dtype(dtype))


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
    given = np.array([7.0, 8.0])
    w.assign(given)
    given[:] = 0
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


# ---------------------------------------------------------------- where nodes come from


def test_a_node_knows_the_line_of_the_user():
    x, at = mg.input("x", (2, 3)), line()
    assert x.source == Location(__file__, at)
    y, at = ops.cross_entropy(x * 2, np.array([0, 1])), line()
    assert {n.source for n in toposort([y])} - {x.source} == {Location(__file__, at)}
    z = (
        x + 1  # a line of its own
    )
    assert at < z.source.line <= line()


def test_a_program_in_a_folder_whose_name_begins_as_the_packages_is_the_users():
    """With the repository in ~/minigraph, ~/minigraph/minigraph_demo.py for one."""
    program = Path(f"{Path(mg.__file__).parent}_demo.py")
    names = {"mg": mg}
    exec(compile("def made():\n    return mg.input('x', (2,))\n", program, "exec"), names)
    assert names["made"]().source == Location(str(program), 2)


def test_a_program_whose_name_no_encoding_gives_can_be_shown(tmp_path):
    names = {"mg": mg}
    exec(compile("x = mg.input('x', (2,))", os.fsdecode(b"/home/\xe4.py"), "exec"), names)
    x = names["x"]
    assert x.source == Location("/home/\N{REPLACEMENT CHARACTER}.py", 1)
    function = mg.comp_graph("reference").compile([x], x + 1)
    function.to_html(tmp_path / "page.html")
    str(function.report()).encode()


def test_a_warning_points_at_the_line_of_the_user(tmp_path):
    with pytest.warns(mg.MinigraphWarning, match="will be a safetensors file") as warned:
        mg.save(tmp_path / "x.npy", {"a": np.ones(1)})
    assert warned[0].filename == __file__
    assert warned[0].lineno == line() - 2


def test_a_node_knows_the_layer_that_was_called():
    with layer("net"), layer(""), layer("conv1"):
        x, at = mg.input("x", (2,)), line()
    assert x.source == Location(__file__, at, "net.conv1")
    assert str(x.source) == f"in layer net.conv1, at {__file__}:{at}"
    assert here().layer == ""


def test_a_gradient_is_made_in_the_name_of_the_users_line():
    place = Location("train.py", 3, "net")
    with gradient_of(place):
        with gradient_of(Location("other.py", 1)):
            pass
        x = mg.input("x", (2,)) + 1
    assert x.source == place._replace(backward=True)
    assert here().file == __file__


X = mg.input("x", (2, 3))


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("std", lambda: ops.std(X, axis=5)),
        ("full", lambda: ops.full((2,), [1, 2, 3])),
        (
            "scaled_dot_product_attention",
            lambda: ops.scaled_dot_product_attention(X, X, X, np.ones(9)),
        ),
        ("unstack", lambda: ops.unstack(mg.input("x", (None, 2)))),
    ],
)
def test_an_error_names_what_the_user_called_not_what_that_calls(name, build):
    with pytest.raises(ShapeError, match=f"^{name}: "):
        build()


def test_an_error_is_located_once_by_what_the_user_called_last():
    @builder
    def outer(x):
        return ops.add(x, np.ones(5))

    with layer("net"), pytest.raises(ShapeError) as caught:
        outer(mg.input("x", (2,)))
    text = str(caught.value)
    assert text.startswith("add: shapes (2,) and (5,) do not broadcast: along an axis, ")
    assert text.count("(operands input x: float32[2]") == 1
    assert f"in layer net, at {__file__}:" in text
    assert text.count(__file__) == 1


def test_every_error_is_a_value_error():
    for kind in (ShapeError, DTypeError, mg.OptionError, mg.CompileError, mg.CacheError):
        assert issubclass(kind, GraphError)
    assert issubclass(GraphError, ValueError)
    assert issubclass(mg.DeviceError, GraphError)


# ---------------------------------------------------------------- graphs


PROGRAM = """\
graph(x: float32[2,3]):
  %0: float32[3,4] = parameter w
  %1: float32[2,4] = matmul x %0
  %2: float32[] = const 0.5
  %3: float32[2,4] = add %1 %2
  %4: float32[4] = const<4>
  %5: float32[4] = const<4>
  %6: float32[2,4], float32[4], float32[4] = batch_norm[eps=0.5] %3 %4 %5
  %7: float32[4] = item[index=1] %6
  %8: float32[1] = sum[axes=(0,)] %7
  %9: float32[] = reshape[shape=()] %8
  return %3, %9, x"""


def test_a_graph_prints_as_a_program():
    x, w = mg.input("x", (2, 3)), mg.Parameter(np.ones((3, 4), "float32"), "w")
    y = x @ w + 0.5
    _, mean, _ = ops.batch_norm_with_statistics(y, eps=0.5)
    assert str(Graph((x,), (y, mean.sum(), x))) == PROGRAM


def test_constants_print_their_value_or_their_size():
    assert str(constant(2.5).op) == "const 2.5"
    assert str(constant(True).op) == "const 1"
    assert str(constant([[3]]).op) == "const 3"
    assert str(constant([1, 2]).op) == "const<2>"
    assert str(constant(1, "bfloat16").op) in ("const 1", "const<1>")
    assert repr(mg.input("x", (2,))) == "input x: float32[2]"


def test_a_graph_lists_each_node_once_after_its_inputs():
    x = mg.input("x", ())
    y = x
    for _ in range(50):
        y = y + y  # 2 ** 50 paths
    graph = Graph((x,), (y, y, x))
    order = list(graph)
    assert len(order) == len(set(order)) == 51
    seen = set()
    for node in order:
        assert seen.issuperset(node.inputs)
        seen.add(node)
    assert order == list(graph.order) or all(a is b for a, b in zip(order, graph, strict=True))
    assert graph(np.float32(1))[0] == 2.0**50


def test_the_order_depends_on_nothing_but_the_graph():
    def build():
        x, y = mg.input("x", (2,)), mg.input("y", (2,))
        a, b = ops.exp(x), ops.sin(y)
        return Graph((x, y), (b * a, a + b))

    assert str(build()) == str(build())
    assert [n.op.name for n in build()] == ["y", "sin", "x", "exp", "multiply", "add"]


def test_parameters_come_in_the_order_of_their_first_use():
    a, b, c = (mg.Parameter(0.0, name) for name in "abc")
    assert [p.name for p in Graph((), (c + a, b * a)).parameters] == ["c", "a", "b"]


def test_users_are_listed_once_for_each_use():
    x = mg.input("x", ())
    y = x * x
    users = Graph((x,), (y, y + x)).users()
    assert [n.op.name for n in users[x]] == ["multiply", "multiply", "add"]
    assert [n.op.name for n in users[y]] == ["add"]


def test_map_rebuilds_what_changes_and_keeps_the_rest():
    x, y = mg.input("x", ()), mg.input("y", ())
    kept, changed = ops.exp(x), ops.sin(y)
    graph = Graph((x, y), (kept, changed + kept))

    def cos_for_sin(node, inputs):
        return ops.cos(*inputs) if node.op.name == "sin" else node.replace(inputs)

    new = graph.map(cos_for_sin)
    assert new.outputs[0] is kept
    assert [n.op.name for n in new] == ["x", "exp", "y", "cos", "add"]
    assert [n.op.name for n in graph] == ["x", "exp", "y", "sin", "add"]
    assert graph.map(lambda node, inputs: node.replace(inputs)).outputs[1] is graph.outputs[1]


def test_map_gives_a_node_what_it_reads_from_now_on():
    x, y = mg.input("x", ()), mg.input("y", ())
    outer = ops.exp(ops.sin(ops.negative(x)))
    graph = Graph((x, y), (outer,))

    def product(node, inputs):
        return inputs[0] * inputs[1] if node is outer else node.replace(inputs)

    new = graph.map(product, reads={outer: (x, y)})
    assert [n.op.name for n in new] == ["x", "y", "multiply"]


def test_substituted_nodes_may_be_written_with_substituted_nodes():
    x, y = mg.input("x", ()), mg.input("y", ())
    inner = ops.sin(x)
    outer = ops.exp(inner) + y
    graph = Graph((x, y), (outer, inner, y))
    new = graph.substitute({inner: [ops.cos(x)], outer: [y - inner]})
    assert [n.op.name for n in new] == ["y", "x", "cos", "subtract"]
    assert new.outputs[0].inputs[1] is new.outputs[1] and new.outputs[2] is y
    assert graph.substitute({}) is graph


def test_the_items_of_a_substituted_bundle_are_its_new_results():
    x, w = mg.input("x", (2, 3, 4, 4)), mg.input("w", (3,))
    y, _, var = BatchNorm(0.1).results(x, w, w)
    graph = Graph((x, w), (ops.exp(var), y))
    new = graph.substitute({y.inputs[0]: [x, w, w + 1]})
    assert [n.op.name for n in new] == ["w", "constant", "add", "exp", "x"]
    assert new.outputs[1] is x


def test_check_accepts_what_the_ops_infer():
    x = mg.input("x", (1, 1, 4, 4))
    y = ops.max_pool2d(ops.exp(x + mg.Parameter(1.0)), 2)
    Graph((x,), (y, *mg.grad(y.sum(), [x]))).check()


def test_check_finds_a_missing_input():
    x, at = mg.input("pixels", (2,)), line()
    with pytest.raises(GraphError, match=rf"pixels.*test_graph.py:{at}.*inputs"):
        Graph((), (x + 1,)).check()


def test_check_finds_a_wrong_spec():
    x = mg.input("x", (2,))
    wrong = Node(Add(), (x, x), (Spec((3,)),))
    with pytest.raises(GraphError, match=rf"add.*test_graph.py:{line() - 1}.*infers"):
        Graph((x,), (wrong,)).check()
    with pytest.raises(DTypeError):
        Graph((x,), (Node(Add(), (x, constant(1)), (Spec((2,)),)),)).check()


def test_nodes_and_ops_cannot_be_changed_by_accident():
    with pytest.raises(AttributeError):
        mg.input("x", ()).colour = "red"
    with pytest.raises(AttributeError):
        Add().name = "plus"


class Twice(Op):
    """A program's own op."""

    def infer(self, x):
        return x

    def forward(self, x):
        return x + x


def test_an_op_in_a_program_of_its_own_needs_shape_rule_and_meaning_alone():
    x = mg.input("x", (2,))
    y = Twice()(x)
    assert str(y.op) == "twice"
    np.testing.assert_array_equal(value(y, x=np.ones(2)), [2, 2])
