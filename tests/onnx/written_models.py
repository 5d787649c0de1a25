"""Models of ONNX that tests write."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import minigraph as mg

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 3)).astype("f")
HIDDEN = RNG.normal(size=(3, 4)).astype("f")
NET = ["h = MatMul(x, w)", "a = Add(h, b)", "y = Relu(a)"]
WEIGHTS = {"w": HIDDEN, "b": np.ones(4, "f")}


def info(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs=("y",), opset=21, **arrays):
    """Return a model of nodes, each a text such as "y = Add(x, w)" or a NodeProto."""
    made = []
    for node in nodes:
        if isinstance(node, str):
            results, call = node.split(" = ")
            name, _, arguments = call.rstrip(")").partition("(")
            node = helper.make_node(name, arguments.split(", "), results.split(", "))
        made.append(node)
    tensors = [numpy_helper.from_array(np.asarray(x), name) for name, x in arrays.items()]
    results = [info(y, None) for y in outputs]
    graph = helper.make_graph(made, "net", inputs, results, tensors)
    domains = [("", opset), ("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*x) for x in domains])


def run(proto, *arrays):
    return mg.onnx.function(proto, "reference", {"graph_opt_level": 0})(*arrays)
