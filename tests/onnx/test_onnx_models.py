"""Models of ONNX run, learn and are shown here as what they are."""

import logging
import tracemalloc
import warnings

import numpy as np
import pytest
from long_runs import long

import minigraph as mg
from minigraph import ops, optim

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
import onnx
from onnx import TensorProto, helper
from written_models import HIDDEN, NET, RNG, WEIGHTS, X, info, model, run

from minigraph.graph import toposort

PLAIN = {"autotune": "off", "num_threads": 1}

# ---------------------------------------------------------------- networks of PyTorch


@pytest.fixture(scope="module")
def networks():
    pytest.importorskip("torch")
    from torch_networks import SMALL

    return SMALL


NAMES = [
    *("alexnet", "encoder", "gpt", "lstm", "mobilenetv2", "unet", "vit"),
    *("resnet of bottlenecks", "resnet of two convolutions a block"),
]
SHORT = [("gpt", False), ("unet", True)]
CASES = [(name, dynamo) for name in NAMES for dynamo in (False, True)]
CASES.remove(("alexnet", False))  # the older exporter has no such adaptive pooling


@pytest.mark.parametrize(("name", "dynamo"), [x if x in SHORT else long(*x) for x in CASES])
def test_a_network_that_torch_exports_predicts_the_same_for_any_batch(
    networks, name, dynamo, tmp_path
):
    torch = pytest.importorskip("torch")
    if dynamo:
        pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    net, (x, _) = networks[name].make(), networks[name].batch()
    net(x)  # which gives batch norms statistics
    net.eval()
    how = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "verbose": False}
    if not dynamo:
        names = {"input_names": ["x"], "output_names": ["y"]}
        how = {**names, "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}
    logging.disable(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(tmp_path / "net.onnx"), dynamo=dynamo, **how)
    logging.disable(logging.NOTSET)
    with torch.no_grad():
        expected = net(x).numpy()
    for level in (0, 3):
        function = mg.onnx.function(
            tmp_path / "net.onnx", options={**PLAIN, "graph_opt_level": level}
        )
        for n in (len(expected), 1):
            np.testing.assert_allclose(function(x.numpy()[:n]), expected[:n], 1e-4, 1e-4)


# ---------------------------------------------------------------- what load and function give


def test_an_imported_model_learns_on():
    loaded = mg.onnx.load(model(NET, [info("x", ["n", 3])], **WEIGHTS))
    assert [p.name for p in loaded.parameters] == ["w", "b"]
    target = mg.input("target", loaded.outputs[0].shape)
    loss = ops.mse_loss(loaded.outputs[0], target)
    adam = optim.Adam(loaded.parameters, lr=0.1)
    step = mg.comp_graph("reference").compile([*loaded.inputs, target], loss, adam.minimize(loss))
    expected = np.abs(RNG.normal(size=(2, 4)))
    losses = [step(X, expected) for _ in range(50)]
    assert losses[-1] < losses[0] / 10


def test_what_a_batch_norm_has_learnt_is_a_parameter_and_not_trainable():
    each = {name: np.ones(3, "f") for name in ("scale", "b", "mean", "var")}
    loaded = mg.onnx.load(
        model(["y = BatchNormalization(x, scale, b, mean, var)"], [info("x", [2, 3])], **each)
    )
    trainable = {p.name: p.trainable for p in loaded.parameters}
    assert trainable == {"scale": True, "b": True, "mean": False, "var": False}


def test_a_function_gives_an_array_or_a_list_in_the_order_of_the_file():
    proto = model(NET, [info("x", [2, 3])], **WEIGHTS)
    expected = np.maximum(X @ HIDDEN + 1, 0)
    np.testing.assert_allclose(run(proto, X), expected, 1e-5)
    proto = model([*NET, "z = Neg(y)"], [info("x", [2, 3])], ("z", "y"), **WEIGHTS)
    for result, value in zip(run(proto, X), (-expected, expected), strict=True):
        np.testing.assert_allclose(result, value, 1e-5)


def test_a_function_has_the_weights_of_a_file_once_in_memory(tmp_path):
    w = np.ones((1024, 1024), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    onnx.save(model(nodes, [info("x", (1, 1024))], w=w), tmp_path / "one.onnx")
    tracemalloc.start()
    predict = mg.onnx.function(str(tmp_path / "one.onnx"), "reference")
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(predict(np.ones((1, 1024), np.float32)), np.full((1, 1024), 1024))
    assert now < 1.5 * w.nbytes and peak < 2.5 * w.nbytes


def test_arithmetic_with_sizes_leaves_no_trace_also_where_sizes_are_symbolic():
    nodes = ["s = Shape(x)", "n = Gather(s, zero)", "m = Mul(n, two)", "t = Concat(m, rest)"]
    nodes[3] = helper.make_node("Concat", ["m", "rest"], ["t"], axis=0)
    arrays = {"zero": np.array([0]), "two": np.array([2]), "rest": np.array([-1])}
    loaded = mg.onnx.load(model([*nodes, "y = Reshape(x, t)"], [info("x", ["n", 4])], **arrays))
    (y,) = loaded.outputs
    assert (y.op.name, y.inputs[0].op.name) == ("reshape", "x")
    assert str(y.spec) == "float32[2*n,2]"


def test_quotients_and_casts_of_sizes_are_sizes():
    cast = [helper.make_node("Cast", [a], [b], to=k) for a, b, k in (("n", "i", 6), ("q", "m", 7))]
    arrays = {"zero": np.array([0]), "four": np.array([4], "i4")}
    nodes = ["s = Shape(x)", "n = Gather(s, zero)", cast[0], "q = Div(i, four)", cast[1]]
    nodes.append("y = Slice(x, zero, m)")
    loaded = mg.onnx.load(model(nodes, [info("x", ["n", 4])], **arrays))
    function = mg.comp_graph("reference").compile(loaded.inputs, loaded.outputs[0])
    assert function(np.zeros((9, 4))).shape == (2, 4)


SHAPED = model(
    ["y = Reshape(x, shape)"], [info("x", [2, 3]), info("shape", [2], TensorProto.INT64)]
)


def test_a_size_that_calls_give_is_read_from_each_call():
    function = mg.onnx.function(SHAPED, "reference")
    assert function(X, np.array([3, 2])).shape == (3, 2)
    assert function(X, shape=np.array([6, 1])).shape == (6, 1)
    assert function.report().ops["reshape"] == 1
    for wrong in ((X,), (X, np.array([3, 2]), X)):
        with pytest.raises(mg.GraphError, match=f"got {len(wrong)} arrays for the inputs x, shape"):
            function(*wrong)


def test_a_function_is_compiled_for_shapes_where_symbolic_sizes_are_not_enough():
    unknown = model(["y = Relu(x)"], [info("x", None)])
    halved = model(["s = Shape(x)", "f = Cast(s)", "g = Mul(f, half)", "t = Cast(g)"], [])
    for node, to in ((halved.graph.node[1], 1), (halved.graph.node[3], 7)):
        node.attribute.append(helper.make_attribute("to", to))
    nodes = [*halved.graph.node, "y = Slice(x, zeros, t)"]
    arrays = {"half": np.float32(0.5), "zeros": np.array([0, 0])}
    sliced = model(nodes, [info("x", ["h", "w"])], **arrays)
    for proto, expected in ((unknown, np.maximum), (sliced, lambda x, _: x[:1, : x.shape[1] // 2])):
        function = mg.onnx.function(proto, "reference")
        for x in (X, X[:, :2], X):
            np.testing.assert_array_equal(function(x), expected(x, 0))
        loaded = mg.onnx.load(proto, shapes={"x": (2, 3)})
        assert loaded.inputs[0].shape == (2, 3)


def test_sizes_that_are_below_0_or_have_no_letters_are_those_of_calls():
    proto = model(["y = Relu(x)"], [info("x", [-1, 3, "?", "?"])])  # as Paddle's exporter writes
    assert [str(n) for n in mg.onnx.load(proto).inputs[0].shape] == ["x_0", "3", "x_2", "x_3"]
    assert run(proto, np.ones((2, 3, 4, 5), "f")).shape == (2, 3, 4, 5)


def test_what_fits_some_sizes_only_is_compiled_for_those_of_the_call():
    """As a file has it whose exporter wrote down the size that it saw: 5 steps, say."""
    flat = np.array([5, -1], np.int64)
    inputs = [info("x", ["t", "n", 3])]
    fixed = {"w": np.ones((5, 1, 3), "f"), "shape": flat, "part": np.array([5, 2, -1], np.int64)}
    nodes = ["a = Reshape(x, shape)", "b = Reshape(x, part)", "c = Add(x, w)"]
    proto = model(nodes, inputs, ("a", "b", "c"), **fixed)
    x = RNG.normal(size=(5, 4, 3)).astype("f")
    function = mg.onnx.function(proto, "reference")
    for result in (function(x), function(x[:, :2])):
        assert [len(y) for y in result] == [5, 5, 5]
    np.testing.assert_array_equal(function(x)[2], x + 1)
    with pytest.raises(mg.ShapeError, match=r"do not fit|makes 36 elements") as caught:
        function(x[:4, :3])
    assert str(caught.value).count("operands") == 1
    with pytest.raises(mg.ShapeError, match="elements fit") as caught:
        mg.onnx.load(proto)
    assert str(caught.value).count("operands") == 1


def test_load_asks_for_the_values_that_shapes_depend_on():
    with pytest.raises(mg.GraphError, match=r"value of the input shape; onnx.load .* values="):
        mg.onnx.load(SHAPED)
    loaded = mg.onnx.load(SHAPED, values={"shape": [3, -1]})
    assert [x.name for x in loaded.inputs] == ["x"]
    assert loaded.outputs[0].shape == (3, 2)


def test_a_function_of_the_values_and_shapes_of_calls_has_the_methods_of_others(tmp_path):
    nodes = ["y = Squeeze(x)", "z = ReduceSum(y, a)"]
    inputs = [info("x", ["n", 3, 1]), info("a", [1], TensorProto.INT64)]
    function = mg.onnx.function(model(nodes, inputs, ("z",)), "cpu", PLAIN)
    assert function(np.ones((2, 3, 1)), [0]).shape == (1, 3)
    assert function.profile(np.ones((1, 3, 1)), [0]).kernels
    function.to_html(tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()
    with pytest.raises(mg.ShapeError, match=r"x takes shape \['n', 3, 1\], got \[2, 4, 1\]"):
        function(np.ones((2, 4, 1)), [0])


def test_tensors_in_another_file_are_mapped_into_memory_and_trained_in_place(tmp_path):
    big = RNG.normal(size=(64, 64)).astype("f")
    proto = model(["y = MatMul(x, w)"], [info("x", [1, 64])], w=big)
    how = {"save_as_external_data": True, "location": "data", "size_threshold": 0}
    onnx.save_model(proto, tmp_path / "net.onnx", **how)
    (w,) = mg.onnx.load(tmp_path / "net.onnx").parameters
    assert isinstance(w.state.read().base, np.memmap)
    np.testing.assert_array_equal(w.numpy(), big)
    before = (tmp_path / "data").read_bytes()
    w.assign(big + 1)
    assert (tmp_path / "data").read_bytes() == before
    (tmp_path / "data").write_bytes(before[:100])
    with pytest.raises(mg.GraphError, match=r"'w' of float32.* data is missing or too short"):
        mg.onnx.load(tmp_path / "net.onnx")


def test_outputs_may_be_inputs_and_what_stands_in_the_file():
    proto = model(["y = Identity(x)"], [info("x", [2, 3])], ("y", "w", "y"), w=np.ones(3, "f"))
    y, w, again = run(proto, X)
    assert (y == X).all() and (again == X).all() and (w == 1).all()


BRANCHES = {
    name: helper.make_graph([helper.make_node(op, ["x"], ["z"])], name, [], [info("z", None)])
    for name, op in (("then_branch", "Neg"), ("else_branch", "Abs"))
}


def test_the_branch_of_a_known_condition_is_taken():
    node = helper.make_node("If", ["c"], ["y"], **BRANCHES)
    for value, expected in ((True, -X), (False, np.abs(X))):
        assert (run(model([node], [info("x", [2, 3])], c=np.array(value)), X) == expected).all()


@pytest.mark.parametrize("test", ["c = Equal(n, four)", "d = Sub(n, four)"])
def test_the_branch_that_a_size_chooses_is_that_of_the_call(test):
    cast = [helper.make_node("Cast", ["d"], ["c"], to=TensorProto.BOOL)] * test.startswith("d")
    node = helper.make_node("If", ["c"], ["y"], **BRANCHES)
    proto = model(["n = Size(x)", test, *cast, node], [info("x", ["n"])], four=np.int64(4))
    function = mg.onnx.function(proto, "reference")
    for n in (4, 5, 4):
        x, negated = np.linspace(-1, 1, n, dtype="f"), (n == 4) != test.startswith("d")
        np.testing.assert_array_equal(function(x), -x if negated else np.abs(x))
    with pytest.raises(mg.GraphError, match=r"compares with . is known only when"):
        mg.onnx.load(proto)


def test_which_axes_a_squeeze_removes_depends_on_the_sizes_of_the_call():
    squeeze = mg.onnx.function(model(["y = Squeeze(x)"], [info("x", ["n", 3, 1])]), "reference")
    assert [squeeze(np.ones((n, 3, 1))).shape for n in (2, 1)] == [(2, 3), (3,)]


def test_a_slice_that_begins_before_the_first_element_and_runs_backwards_has_that_element():
    bounds = {name: np.array([n]) for name, n in (("s", -9), ("e", -99), ("a", 0), ("p", -1))}
    for size in (3, "n"):
        proto = model(["y = Slice(x, s, e, a, p)"], [info("x", [size])], **bounds)
        np.testing.assert_array_equal(run(proto, np.arange(3.0)), [0])


def test_a_causal_mask_may_begin_at_a_length_that_the_call_gives():
    """As that of a model with the keys and values of earlier calls."""
    nodes = ["s = Shape(past)", "k = Gather(s, zero)", "y = Trilu(x, k)"]
    proto = model(nodes, [info("past", ["p"]), info("x", ["t", "u"])], zero=np.int64(0))
    assert str(mg.onnx.load(proto).outputs[0].spec) == "float32[t,u]"
    x = RNG.normal(size=(2, 5)).astype("f")
    for past in (1, 3):
        np.testing.assert_array_equal(run(proto, np.ones(past), x), np.triu(x, past))


def test_a_table_that_is_cut_to_a_text_has_the_length_of_the_text():
    nodes = ["n = Shape(x)", "t = Slice(table, zero, n)", "y = Add(x, t)"]
    arrays = {"table": np.arange(9, dtype="f"), "zero": np.array([0])}
    proto = model(nodes, [info("x", ["n"])], **arrays)
    assert str(mg.onnx.load(proto).outputs[0].spec) == "float32[n]"
    function = mg.onnx.function(proto, "reference")
    for n in (1, 3, 9):
        np.testing.assert_array_equal(function(np.ones(n)), np.arange(n) + 1)
    with pytest.raises(mg.ShapeError, match="slice 0:10 is out of range for an axis of length 9"):
        function(np.ones(10))


@pytest.mark.parametrize(
    ("mode", "scale", "expected"),
    [("asymmetric", 0.6, [0, 1, 3, 5, 6]), ("half_pixel", 2.3, [0, 0, 0, 1, 1, 1, 2, 2, 3, 3])],
)
def test_sizes_and_places_of_a_resize_are_computed_in_float32(mode, scale, expected):
    how = {"coordinate_transformation_mode": mode, "nearest_mode": "floor"}
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], **how)
    result = run(model([node], [info("x", [10])], s=np.array([scale], "f")), np.arange(10.0))
    assert result.shape == (int(10 * scale + 0.01),)
    np.testing.assert_array_equal(result[: len(expected)], expected)


def test_a_grid_of_one_image_has_the_places_of_its_pixels():
    """ONNX's own definition of AffineGrid fails for one image."""
    theta = np.float32([[[0, -1, 0.5], [1, 0, 0]]])  # a quarter turn, and half a width to the right
    proto = model(["n = Shape(x)", "y = AffineGrid(t, n)"], [info("x", [1, 1, "h", "w"])], t=theta)
    expected = [[[1, -0.5], [1, 0.5]], [[0, -0.5], [0, 0.5]]]
    result = run(proto, np.ones((1, 1, 2, 2), "f"))
    np.testing.assert_allclose(result, [expected], atol=1e-6)


def test_a_spectrum_of_signals_with_two_axes_is_that_of_signals_with_three():
    x, cuts = RNG.normal(size=(2, 12)), {"s": np.int64(2), "w": np.hanning(8)}
    two, three = (
        run(model(["y = STFT(x, s, w)"], [info("x", y.shape, TensorProto.DOUBLE)], **cuts), y)
        for y in (x, x[..., None])
    )
    np.testing.assert_array_equal(two, three)


def test_a_power_whose_exponent_stands_in_the_file_is_a_product():
    proto = model(["z = Pow(x, two)", "y = Pow(z, n)"], [info("x", [3])], two=np.int64(2), n=[0.3])
    loaded = mg.onnx.load(proto)
    assert [type(y.op).__name__ for y in toposort(loaded.outputs)].count("ConstantPow") == 1
    np.testing.assert_allclose(run(proto, [1, -2, 3]), np.array([1, 4, 9]) ** 0.3, 1e-6)


def test_a_size_is_never_below_1_in_a_condition():
    """As exporters ask of each axis of `Expand` whether it is -1, where it stays."""
    nodes = ["s = Shape(x)", "c = Equal(s, minus)", "t = Where(c, one, s)", "y = Expand(w, t)"]
    arrays = {"minus": np.int64([-1]), "one": np.int64([1]), "w": np.float32([2])}
    for n in (1, 3):
        x = np.ones((n, 3), "f")
        np.testing.assert_array_equal(run(model(nodes, [info("x", ["n", 3])], **arrays), x), 2 * x)


# ---------------------------------------------------------------- operators of others


def test_quantised_pairs_are_computed_in_floats_and_said_once(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    nodes = ["q = QuantizeLinear(x, s, z)", "y = DequantizeLinear(q, s, z)"]
    proto = model(nodes, [info("x", [3])], s=np.float32(0.1), z=np.uint8(128))
    with pytest.warns(mg.MinigraphWarning, match="computed in floats") as caught:
        result = [run(proto, np.array([0.33, -99, 99], "f")) for _ in range(2)]
    assert len(caught) == 1
    np.testing.assert_allclose(result, [[0.3, -12.8, 12.7]] * 2, 1e-5)


def test_what_is_computed_of_the_newest_opset_is_computed_of_older_ones():
    oldest, newest = 9, onnx.defs.onnx_opset_version()

    def missing(opset):
        schemas = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
        nodes = [
            helper.make_node(name, ["x"], ["y"])
            for name in sorted(schemas)
            if onnx.defs.has(name, opset, "")
            and not onnx.defs.get_schema(name, opset, "").deprecated
        ]
        try:
            mg.onnx.load(model(nodes, [info("x", [1])], opset=opset))
        except mg.GraphError as error:
            listed = str(error).partition("counts): ")[2].partition(";")[0].split(", ")
            return {each.partition(" ")[0] for each in listed}
        raise AssertionError("no operator is missing")

    assert set.union(*[missing(n) for n in range(oldest, newest)]) == missing(newest)


@pytest.mark.parametrize(("size", "floats"), [(200, True), (10_000, False)])
@pytest.mark.filterwarnings("ignore:quantised operators")
def test_products_of_integers_are_exact_and_of_float32_where_that_is_exact(size, floats):
    a, b = np.full((1, size), 255, "u1"), np.full((size, 2), 127, "i1")
    a[0, 0], uint8 = 254, TensorProto.UINT8
    proto = model(["y = MatMulInteger(a, b)"], [info("a", [1, size], uint8)], b=b)
    loaded = mg.onnx.load(proto)
    matmul = next(y for y in toposort(loaded.outputs) if type(y.op).__name__ == "Matmul")
    assert (matmul.dtype == np.float32) == floats
    assert np.all(run(proto, a) == 255 * 127 * size - 127)
