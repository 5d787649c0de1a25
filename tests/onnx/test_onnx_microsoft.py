"""Operators of com.microsoft, which onnxruntime writes, beside what onnxruntime computes."""

import numpy as np
import pytest

pytest.importorskip("onnx.defs")  # without the package, "onnx" is this folder
from onnx import helper, numpy_helper
from written_models import RNG, info, run

runtime = pytest.importorskip("onnxruntime")

F = RNG.normal(size=(2, 4, 5, 5)).astype("f")
Q = RNG.integers(0, 255, (2, 4, 5, 5)).astype("u1")
OTHER = RNG.integers(0, 255, (1, 4, 1, 5)).astype("u1")
SMALL, ZERO = (np.float32(0.02137), np.uint8(120)), (np.float32(0.03119), np.uint8(7))
LSTM = [
    RNG.normal(size=(6, 2, 5)).astype("f"),
    *(RNG.integers(-99, 99, (2, n, 12)).astype("i1") for n in (5, 3)),
    *(RNG.normal(size=(2, 24)).astype("f"), None),
    *(RNG.normal(size=(2, 2, 3)).astype("f") for _ in range(2)),
    None,
    *(np.float32([0.01, 0.02]), np.int8([0, 3])),
    *(RNG.random((2, 12), "f") / 50, np.zeros((2, 12), "i1")),
]
BYTES = RNG.integers(0, 255, (2, 5)).astype("u1")
COLUMNS, TERM = RNG.integers(-99, 99, (5, 3)).astype("i1"), np.int32([500, -900, 70])
CASES = {
    "Gelu": ([F], {}),
    "SimplifiedLayerNormalization of ONNX": ([F, F[0, 0, 0]], {"epsilon": 1e-3}),
    "SkipLayerNormalization": ([F[0], F[1], *F[0, 0, :3]], {"epsilon": 1e-3}),
    "SkipSimplifiedLayerNormalization": ([F[0], F[1], *F[0, 0, :2]], {"epsilon": 1e-3}),
    "BiasGelu": ([F, F[0, 0, 0]], {}),
    "FastGelu": ([F], {}),
    "FastGelu with a bias": ([F, F[0, 0, 0]], {}),
    "QuickGelu": ([F], {"alpha": 1.5}),
    "FusedConv": ([F, F[:, :, :3, :3], F[0, 0, 0, :2]], {"activation": "Relu"}),
    "FusedConv LeakyRelu": (
        [F, F[:, :, :3, :3], None, F[:, :2, :3, :3]],
        {"activation": "LeakyRelu", "activation_params": [0.3]},
    ),
    "QLinearAdd": ([Q, *SMALL, OTHER, *ZERO, *SMALL], {}),
    "QLinearMul": ([Q, *SMALL, OTHER, *ZERO, *ZERO], {}),
    "QLinearSigmoid": ([Q, *SMALL, np.float32(1 / 256), np.uint8(0)], {}),
    "QLinearLeakyRelu": ([Q, *SMALL, *ZERO], {"alpha": 0.2}),
    "QLinearSoftmax": ([Q, *SMALL, np.float32(1 / 256), np.uint8(0)], {"axis": -1, "opset": 13}),
    "QLinearGlobalAveragePool": ([Q, *SMALL, *ZERO], {}),
    "QLinearGlobalAveragePool of last": ([Q, *SMALL, *ZERO], {"channels_last": 1}),
    "QLinearAveragePool": ([Q, *SMALL, *ZERO], {"kernel_shape": [2, 3], "strides": [2, 1]}),
    "QLinearAveragePool of last": (
        [Q, *SMALL, *ZERO],
        {"channels_last": 1, "kernel_shape": [2, 2], "pads": [1, 1, 0, 0]},
    ),
    "QLinearWhere": ([OTHER[0, 0] > 99, Q, *SMALL, OTHER, *ZERO, *ZERO], {}),
    "QGemm": (
        [BYTES, *SMALL, COLUMNS, np.float32([0.01, 0.02, 0.03]), np.int8([0, 0, 0]), TERM, *ZERO],
        {"alpha": 0.5},
    ),
    "QGemm to floats": (
        [BYTES, *SMALL, COLUMNS.T.copy(), np.float32(0.01), np.int8(3), TERM],
        {"transB": 1},
    ),
    **{
        f"FusedMatMul {a}{b}{c}{d}": (
            [F[0] if a else F[0].swapaxes(0, 1), F[0] if b else F[0].swapaxes(0, 1)],
            {"transA": c, "transB": d, "transBatchA": a, "transBatchB": b, "alpha": 0.5},
        )
        for a, b, c, d in ((1, 1, 0, 1), (0, 1, 1, 0))
    },
    "QLinearConcat": ([*ZERO, Q, *SMALL, Q, *ZERO], {"axis": 1}),
    "DynamicQuantizeLSTM": (LSTM, {"hidden_size": 3, "direction": "bidirectional"}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:quantised operators")
def test_an_operator_computes_what_onnxruntime_computes(name):
    arrays, attributes = CASES[name]
    feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(arrays) if x is not None}
    names = [f"x{i}" if f"x{i}" in feeds else "" for i in range(len(arrays))]
    results = ["y", "h", "c"] if "LSTM" in name else ["y"]
    domain = "" if "ONNX" in name else "com.microsoft"  # onnxruntime writes it into ONNX's own
    node = helper.make_node(name.split()[0], names, results, domain=domain, **attributes)
    tensors = [numpy_helper.from_array(x, k) for k, x in feeds.items() if k != "x0"]
    x = feeds.get("x0")
    inputs = [info("x0", x.shape, helper.np_dtype_to_tensor_dtype(x.dtype))]
    kind = helper.np_dtype_to_tensor_dtype(
        np.dtype("u1" if "QLinear" in name or name == "QGemm" else "f")
    )
    graph = helper.make_graph(
        [node], "net", inputs, [info(y, None, kind) for y in results], tensors
    )
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=domains, ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # with more, each example has its own scale in an LSTM
    session = runtime.InferenceSession(proto.SerializeToString(), options)
    expected, result = session.run(None, {"x0": x}), run(proto, x)
    for one, other in zip(expected, result if isinstance(result, list) else [result], strict=True):
        assert one.dtype == other.dtype
        if one.dtype == np.uint8:  # what lies between two integers may become either
            assert (other != one).mean() < 0.02
        np.testing.assert_allclose(other, one, 1e-5, 1 if one.dtype == np.uint8 else 1e-6)
