"""What is no model of ONNX, or does not fit one, is one error that says so."""

import numpy as np
import pytest
from new_process import python

import minigraph as mg
from minigraph.errors import install_command

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
from onnx import TensorProto, helper
from written_models import X, info, model


def test_all_operators_that_are_missing_are_named_at_once_with_counts():
    nodes = ["a = Unique(x)", "b = Unique(a)", "y = Optional(b)"]
    other = helper.make_node("Own", ["x"], ["z"], domain="my.domain")
    with pytest.raises(mg.GraphError, match=r"Optional \(1\), Unique \(2\), my.domain.Own \(1\);"):
        mg.onnx.load(model([*nodes, other], [info("x", [3])]))


SIZES = {"two": np.array([2]), "five": np.array([1, 5]), "long": np.array([1, 1, 0])}
SIZES["flat"] = np.array([0.0, 1.0], "f")
IMAGES, WINDOW = [info("x", [1, 3, 8, 8])], {"w": np.ones((4, 3, 3, 3), "f")}


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (("Relu", "x", "y", {"alpha": 1.0}), "Unrecognized attribute: alpha"),
        (("Concat", "x x", "y", {}), "Required attribute 'axis' is missing"),
        (("Add", "x", "y", {}), "input size 1 not in range"),
        (("Conv", "x w", "y", {"pads": [1, 1]}), "a window of [3, 3] does not fit"),
        (("Conv", "x w", "y", {"strides": [0, 1]}), "strides and dilations of windows must be 1"),
        (("Conv", "x w", "y", {"kernel_shape": [5, 5]}), "its kernel_shape [5, 5] does not match"),
        (("Conv", "x w", "y", {"auto_pad": "SAME"}), "auto_pad is 'SAME'; it takes"),
        (("Resize", "x  flat", "y", {}), "its scales or sizes are not one for each of 4 axes"),
        (("Resize", "x  flat", "y", {"axes": [2, 3]}), "scales are [0. 1.]; they must be above 0"),
        (("Resize", "x  flat", "y", {"mode": "near"}), "mode is 'near'; it takes"),
        (("Split", "x five", "y z", {"axis": 1}), "2 parts of [1, 5] do not make 3"),
        (("Split", "x", "y z", {"axis": 1, "split": [1, 2]}), "Unrecognized attribute: split"),
        (("Reshape", "two long", "y", {}), "a 0 keeps a size, but [1, 1, 0] is longer than [1]"),
        (("Slice", "x two five", "y", {}), "its starts, ends, axes and steps differ in length"),
        (("Slice", "x two two five", "y", {}), "starts, ends, axes and steps differ"),
        (("Slice", "two two two two", "y", {}), "axis 2 does not exist; there are 1 axes"),
        (("Pad", "x five", "y", {}), "2 pads are not two for each of 4 axes"),
        (("Range", "zero zero zero", "y", {}), "its step is 0"),
        (("LSTM", "x w w", "y", {"direction": "up"}), "direction is 'up'; it takes"),
        (("GRU", "x w w", "y", {"clip": 0.5}), "its clip is not supported"),
        (("GRU", "x w w", "y", {"activations": ["No"]}), "its activations are ['No']; use"),
    ],
)
def test_a_node_that_does_not_fit_its_operator_is_named_with_the_reason(node, text):
    kind, inputs, outputs, attributes = node
    made = helper.make_node(kind, inputs.split(" "), outputs.split(), name="this one", **attributes)
    proto = model([made], IMAGES, zero=np.float32(0), **SIZES, **WINDOW)
    with pytest.raises(mg.GraphError) as caught:
        mg.onnx.load(proto)
    assert text in str(caught.value)
    assert "in layer this one, at net:0" in str(caught.value)


def test_tensors_that_are_there_twice_or_of_other_types_are_named():
    proto = model(["y = Add(x, w)"], [info("x", [2])], w=np.ones(2, "f"))
    proto.graph.initializer.append(proto.graph.initializer[0])
    with pytest.raises(mg.GraphError, match="the name 'w' has two tensors"):
        mg.onnx.load(proto)
    del proto.graph.initializer[1]
    proto.graph.initializer[0].data_type = TensorProto.COMPLEX64
    with pytest.raises(mg.DTypeError, match="the tensor 'w': complex64 is not supported"):
        mg.onnx.load(proto)


def test_functions_that_double_the_number_of_nodes_again_and_again_end_in_an_error(monkeypatch):
    monkeypatch.setattr("minigraph.onnx.interpret.MAX_NODES", 1000)
    proto = model([helper.make_node("f0", ["x"], ["y"], domain="my")], [info("x", [2])])
    imports = [helper.make_opsetid("my", 1)]
    for i in range(20):
        inner = [helper.make_node(f"f{i + 1}", [a], [b], domain="my") for a, b in ("xh", "hy")]
        proto.functions.append(helper.make_function("my", f"f{i}", ["x"], ["y"], inner, imports))
    inner = [helper.make_node("Relu", ["x"], ["y"])]
    last = helper.make_function("my", "f20", ["x"], ["y"], inner, [helper.make_opsetid("", 21)])
    proto.functions.append(last)
    with pytest.raises(mg.GraphError, match="the model has more than 1,000 operators"):
        mg.onnx.load(proto)


@pytest.mark.parametrize(
    ("proto", "text"),
    [
        (model(["y = Relu(z)"], [info("x", [3])]), "Relu: it reads 'z', which no earlier node"),
        (model(["y = Relu(x)", "y = Abs(x)"], [info("x", [3])]), "'y', which exists already"),
        (model(["z = Relu(x)"], [info("x", [3])]), "no node of net computes the tensor 'y'"),
        (model(["y = Relu(x)"], [info("x", None)]), "number of axes of the input 'x'"),
        (
            model(["y = Relu(x)"], [info("x", [3], TensorProto.COMPLEX64)]),
            "'x': complex64 is not supported",
        ),
        (model([], [], ()), "net is not an ONNX model, or has no graph"),
        (model(["y = Relu(x)"], [info("x", [3])], opset=99), "net has opset 99; opsets 1 to"),
        (model(["y = Add(x, w)"], [info("x", [3])], w=np.ones(2, "f")), "do not broadcast"),
        (3, "a model is a path or an onnx.ModelProto, not a int"),
        ("nowhere.onnx", "nowhere.onnx cannot be read"),
    ],
)
def test_what_is_no_model_is_an_error_of_one_line(proto, text):
    with pytest.raises(mg.GraphError) as caught:
        mg.onnx.load(proto)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_the_package_onnx_one_line_says_what_to_install(tmp_path):
    (tmp_path / "onnx.py").write_text("raise ImportError('none')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import minigraph\n"
        "try: minigraph.onnx\n"
        "except ImportError as error: print(error)"
    )
    assert python("-c", code)[0] == (
        f"minigraph.onnx needs the package onnx: {install_command('onnx')}\n"
    )


def test_names_values_and_shapes_of_inputs_that_do_not_fit_are_errors():
    proto = model(["y = ReduceSum(x, a)"], [info("x", ["n", 3]), info("a", [1], TensorProto.INT64)])
    for keywords in ({"values": {"b": [0]}}, {"shapes": {"b": (1,)}, "values": {"a": [0]}}):
        with pytest.raises(mg.GraphError, match="net has no input 'b'; it has x, a"):
            mg.onnx.load(proto, **keywords)
    with pytest.raises(mg.DTypeError, match=r"onnx\.load: the input 'a': float64 does not cast"):
        mg.onnx.load(proto, values={"a": [0.5]})
    function = mg.onnx.function(proto, "reference")
    for wrong in (lambda: mg.onnx.load(proto, values={"a": [0, 1]}), lambda: function(X, [0, 1])):
        with pytest.raises(mg.ShapeError, match=r"input a takes shape \[1\], got \[2\]"):
            wrong()
    with pytest.raises(mg.GraphError, match=r"options is \[3\]; it takes a mapping"):
        mg.onnx.function(proto, "reference", [3])
    with pytest.raises(mg.GraphError, match="nothing is compiled before the first call"):
        function.report()
    for arrays, named in (((X, [0]), {"x": X}), ((X, [0], X), {}), ((X,), {"b": [0]})):
        with pytest.raises(mg.GraphError, match="arrays for the inputs x, a; pass each once"):
            function(*arrays, **named)
