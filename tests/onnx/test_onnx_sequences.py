"""Sequences of tensors in models of ONNX, as exporters write lists that a loop fills."""

import numpy as np
import pytest

import minigraph as mg

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
from onnx import TensorProto, helper
from written_models import info, model, run


def test_a_loop_that_gathers_tensors_in_a_sequence_runs_for_any_size():
    steps = [
        helper.make_node("Gather", ["x", "i"], ["e"]),
        helper.make_node("Mul", ["e", "v"], ["r"]),
        helper.make_node("SequenceInsert", ["s", "r"], ["t"]),
    ]
    step, go_on = info("i", [], TensorProto.INT64), info("c", [], TensorProto.BOOL)
    inputs = [step, go_on, info("s", None), info("v", [2])]
    outputs = [go_on, info("t", None), info("r", [2])]
    body = helper.make_graph(steps, "body", inputs, outputs)
    empty = helper.make_node("SequenceEmpty", [], ["none"])
    loop = helper.make_node("Loop", ["n", "", "none", "w"], ["all", "last"], body=body)
    join = helper.make_node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1)
    w = np.float32([1, 2])
    proto = model(["n = Size(x)", empty, loop, join], [info("x", ["n"])], w=w)
    function = mg.onnx.function(proto, "reference")
    for n in (1, 3):
        x = np.linspace(0.5, 2, n, dtype="f")
        np.testing.assert_allclose(function(x), np.cumprod(x)[:, None] * w, 1e-6)
    loaded = mg.onnx.load(proto, shapes={"x": (3,)})
    assert [p.name for p in loaded.parameters] == ["w"]  # trainable, as without a sequence


@pytest.mark.parametrize(
    ("attributes", "split", "expected"),
    [
        ({"axis": 1}, np.int64(2), [(2, 2), (2, 2), (2, 1)]),
        ({"axis": -1}, np.int64([1, 4]), [(2, 1), (2, 4)]),
        ({}, None, [(1, 5), (1, 5)]),
        ({"keepdims": 0}, None, [(5,), (5,)]),
    ],
)
def test_a_sequence_has_the_parts_of_a_tensor(attributes, split, expected):
    x, arrays = np.arange(10, dtype="f").reshape(2, 5), {} if split is None else {"n": split}
    node = helper.make_node("SplitToSequence", ["x", *arrays], ["s"], **attributes)
    arrays |= {f"i{i}": np.int64(i) for i in range(len(expected))}
    names = [f"y{i}" for i in range(len(expected))]
    reads = [f"{name} = SequenceAt(s, i{i})" for i, name in enumerate(names)]
    proto = model([node, *reads], [info("x", [2, "n"])], names, **arrays)
    function = mg.onnx.function(proto, "reference")
    parts = function(x)
    assert [part.shape for part in parts] == expected
    axis = attributes.get("axis", 0)
    joined = np.concatenate(parts, axis) if parts[0].ndim == 2 else np.stack(parts)
    np.testing.assert_array_equal(joined, x)


def test_a_sequence_is_changed_and_counted():
    nodes = ["s = SequenceConstruct(x, w)", "t = SequenceInsert(s, v, i)", "u = SequenceErase(t)"]
    last = ["n = SequenceLength(u)", "y = SequenceAt(u, i)"]
    arrays = {"i": np.int64(0), "v": np.float32([7]), "w": np.float32([8])}
    proto = model([*nodes, *last], [info("x", [1])], ("n", "y"), **arrays)
    n, y = run(proto, np.float32([1]))
    assert (n, y) == (2, 7)
    proto = model(nodes, [info("x", [1])], ("u",), **arrays)
    with pytest.raises(mg.GraphError, match="no node of net computes the tensor 'u'"):
        mg.onnx.load(proto)
