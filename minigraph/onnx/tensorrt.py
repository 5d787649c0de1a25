"""What TensorRT's reader of ONNX takes: onnx-tensorrt 10.15, docs/operators.md."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

import onnx
from onnx import ModelProto, TensorProto

from minigraph.errors import GraphError
from minigraph.graph import Node, SymbolicSize, is_symbolic
from minigraph.onnx.tensors import every

VERSION = "10.15"
OPSETS = range(9, 25)
NUMBERS = ("FLOAT", "FLOAT16", "BFLOAT16", "INT32", "INT64")
# The operators of the table that graphs of ours are made of, by the types of their first operand.
TABLE = {
    NUMBERS[:3]: (
        "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Clip Conv "
        "ConvTranspose Cos Cosh CumSum Erf Exp Floor Gemm HardSwish IsInf LRN LeakyRelu Log "
        "LogSoftmax MatMul MaxPool PRelu Reciprocal Round Scan Sigmoid Sin Sinh Softmax Sqrt Tan "
        "Tanh"
    ),
    NUMBERS: (
        "Abs Add ArgMax Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max Min Mod Mul "
        "Neg Pad Pow Range ReduceMax ReduceMin ReduceProd ReduceSum Relu ScatterElements Sign Sub "
        "TopK"
    ),
    (*NUMBERS, "BOOL"): (
        "Cast Concat Expand Gather GatherElements Identity Reshape Shape Slice Squeeze Transpose "
        "Unsqueeze Where"
    ),
    ("BOOL",): "And Not Or Xor",
}
TYPES = {name: types for types, names in TABLE.items() for name in names.split()}


def check(model: ModelProto) -> None:
    """Raise GraphError with all that TensorRT does not take of a model, with counts."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {
        value.name: TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    lacking: Counter[str] = Counter()
    if model.opset_import[0].version not in OPSETS:
        lacking[f"opset {model.opset_import[0].version}"] += 1
    for node in every(inferred.node):
        first = [*node.input, ""][1 if node.op_type == "Where" else 0]
        if node.op_type not in TYPES:
            lacking[node.op_type] += 1
        elif first in types and types[first] not in TYPES[node.op_type]:
            lacking[f"{node.op_type} of {types[first].lower()}"] += 1
    if lacking:
        listed = ", ".join(f"{what} ({n})" for what, n in sorted(lacking.items()))
        raise GraphError(f"onnx.save: onnx-tensorrt {VERSION} does not take {listed}")


def command(path: str, inputs: Sequence[Node]) -> str:
    """Return the line that builds an engine from a model, for the least sizes that calls give."""
    shapes = ",".join(
        f"{x.name}:" + "x".join(map(_least, x.shape)) for x in inputs if is_symbolic(x.shape)
    )
    stem = path.removesuffix(".onnx")
    words = [f"--onnx={path}", f"--saveEngine={stem}.engine", f"--timingCacheFile={stem}.timing"]
    words += [f"--{which}Shapes={shapes}" for which in ("min", "opt", "max") if shapes]
    return shlex.join(["trtexec", *words])


def _least(size: int) -> str:
    return str(size.at(dict.fromkeys(size.names, 1)) if isinstance(size, SymbolicSize) else size)
