"""Models of opsets before 13 mean what their opset said."""

import numpy as np
import pytest

import minigraph as mg

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
from onnx import helper
from written_models import info, model, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3, 4)).astype("f")
FLAT = X.reshape(2, 12)
COLUMN = np.float32([-1, 0.5, 2])
POSITIVE = RNG.uniform(0.5, 2, (3, 4)).astype("f")
PIXELS = {"scale": POSITIVE, "bias": -POSITIVE, "mean": POSITIVE + 1, "var": POSITIVE**2}
NORMALISED = (X - PIXELS["mean"]) / np.sqrt(PIXELS["var"] + 1e-5) * POSITIVE - POSITIVE
EXPONENTIALS = np.exp(FLAT)
SOFTMAX = (EXPONENTIALS / EXPONENTIALS.sum(1, keepdims=True)).reshape(X.shape)
PADDED = np.pad(X, [(0, 0), (0, 0), (1, 1)], constant_values=7)
SELU = 1.05070 * np.where(X > 0, X, 1.67326 * np.expm1(X))
HOT = np.float32(FLAT.max(1, keepdims=True) == FLAT).reshape(X.shape)


@pytest.mark.parametrize(
    ("opset", "kind", "attributes", "arrays", "expected"),
    [
        (12, "Hardmax", {}, {}, HOT),
        (11, "LogSoftmax", {"axis": -2}, {}, np.log(SOFTMAX)),
        (11, "Softmax", {}, {}, SOFTMAX),
        (11, "Softmax", {"axis": 2}, {}, np.exp(X) / np.exp(X).sum(2, keepdims=True)),
        (11, "ReduceSum", {"axes": [-1], "keepdims": 0}, {}, X.sum(2)),
        (11, "ReduceMax", {"axes": [1], "keepdims": 0}, {}, X.max(1)),
        (11, "Unsqueeze", {"axes": [0, -1]}, {}, X[None, ..., None]),
        (11, "Split", {"axis": 1, "split": [3]}, {}, X),
        (10, "Clip", {"max": 0.5}, {}, np.minimum(X, 0.5)),
        (10, "Pad", {"pads": [0, 0, 1] * 2, "value": 7.0}, {}, PADDED),
        (10, "Dropout", {"ratio": 0.9}, {}, X),
        (9, "Slice", {"starts": [1], "ends": [9], "axes": [1]}, {}, X[:, 1:]),
        (9, "TopK", {"k": 1}, {}, X.max(2, keepdims=True)),
        (9, "Scatter", {"axis": 0}, {"i": np.zeros((1, 3, 4), "i8"), "u": X[1:]}, X[[1, 1]]),
        (8, "BatchNormalization", {"spatial": 0}, PIXELS, NORMALISED),
        (6, "Mul", {"broadcast": 1, "axis": 1}, {"b": COLUMN}, X * COLUMN[:, None]),
        (6, "Less", {"broadcast": 1, "axis": 1}, {"b": COLUMN}, np.less(X, COLUMN[:, None])),
        (6, "Sub", {"broadcast": 1}, {"b": POSITIVE}, X - POSITIVE),
        (6, "PRelu", {}, {"b": COLUMN}, np.where(X < 0, X * COLUMN[:, None], X)),
        (5, "Cast", {"to": "INT32"}, {}, X.astype("i4")),
        (4, "Reshape", {"shape": [0, -1]}, {}, FLAT),
        (3, "Concat", {}, {"b": X}, np.concatenate([X, X], 1)),
        (5, "Selu", {"consumed_inputs": [0]}, {}, SELU),
    ],
)
@pytest.mark.parametrize("batch", [2, "n"])
def test_an_operator_computes_what_its_opset_said(opset, kind, attributes, arrays, expected, batch):
    node = helper.make_node(kind, ["x", *arrays], ["y"], **attributes)
    result = run(model([node], [info("x", [batch, 3, 4])], opset=opset, **arrays), X)
    assert result.dtype == expected.dtype
    np.testing.assert_allclose(result, expected, 2e-5, 1e-6)


@pytest.mark.parametrize(("opset", "kind"), [(12, "Softmax"), (6, "Add")])
def test_an_axis_that_does_not_exist_is_an_error(opset, kind):
    inputs = ["x", "x"] if kind == "Add" else ["x"]
    node = helper.make_node(kind, inputs, ["y"], axis=3)
    with pytest.raises(mg.ShapeError, match="axis 3 does not exist; there are 3 axes"):
        mg.onnx.load(model([node], [info("x", X.shape)], opset=opset))


def test_a_function_of_an_older_opset_than_its_model_means_what_its_own_opset_said():
    softmax = helper.make_node("Softmax", ["a"], ["b"])
    old = helper.make_function("own", "Old", ["a"], ["b"], [softmax], [helper.make_opsetid("", 11)])
    call = helper.make_node("Old", ["x"], ["y"], domain="own")
    proto = model([call], [info("x", X.shape)], opset=21)
    proto.functions.append(old)
    np.testing.assert_allclose(run(proto, X), SOFTMAX, 1e-5)


def test_pixels_began_at_the_left_edge_before_opset_11():
    scales = {"scales": np.array([1, 1, 1, 1.5], "f")}
    for opset, op in ((9, "Upsample"), (10, "Resize"), (11, "Resize")):  # half pixels since 11
        nodes = [helper.make_node(op, ["x", *[""] * (opset > 10), "scales"], ["y"], mode="linear")]
        resized = model(nodes, [info("x", [1, 1, 1, 4])], opset=opset, **scales)
        half = np.clip((np.arange(6) + 0.5) / 1.5 - 0.5, 0, 3)
        expected = half if opset > 10 else np.minimum(np.arange(6) / 1.5, 3)
        result = run(resized, np.arange(4.0).reshape(1, 1, 1, 4))
        np.testing.assert_allclose(result.ravel(), expected, 1e-6)


@pytest.mark.parametrize(
    ("opset", "scale", "how", "expected"),
    [
        (10, 0.6, {}, [0, 2, 4, 5, 7, 9]),  # as onnxruntime: ceil(i / 0.6), and floor(i / 1.2)
        (10, 1.2, {}, [0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9]),
        (10, 2.0, {}, np.repeat(np.arange(10), 2)),
        (12, 0.5, {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}, [1, 3, 5, 7, 9]),
    ],
)
def test_nearest_pixels_of_an_older_resize(opset, scale, how, expected):
    inputs = ["x", *[""] * (opset > 10), "s"]
    nodes = [helper.make_node("Resize", inputs, ["y"], **how)]
    proto = model(nodes, [info("x", [10])], opset=opset, s=np.float32([scale]))
    np.testing.assert_array_equal(run(proto, np.arange(10.0)), expected)


def test_a_scan_with_a_batch_axis_of_its_own_is_refused():
    proto = model(["y = Scan(x)"], [info("x", [2])], opset=8)
    with pytest.raises(mg.GraphError, match=r"Scan of opset 8 \(1\)"):
        mg.onnx.load(proto)
