"""What TensorRT's reader of ONNX takes: onnx-tensorrt 10.15, docs/operators.md."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping

from onnx import ModelProto, TensorProto

VERSION = "10.15"
OPSETS = range(9, 25)
MOST_CHOSEN = 3839  # elements that TopK gives

# By the types of their first operand, the operators of the table that graphs of ours are made of:
# floats; floats and integers of 32 and 64 bits; these and bool; bool.
FLOATS = (
    "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Clip Conv ConvTranspose "
    "Cos Cosh CumSum Erf Exp Floor Gemm HardSwish IsInf LRN LeakyRelu Log LogSoftmax MatMul "
    "MaxPool PRelu Reciprocal Round Scan Sigmoid Sin Sinh Softmax Sqrt Tan Tanh"
)
NUMBERS = (
    "Abs Add ArgMax Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max Min Mod Mul Neg "
    "Pad Pow Range ReduceMax ReduceMin ReduceProd ReduceSum Relu ScatterElements Sign Sub TopK"
)
ALL = (
    "Cast Concat Expand Gather GatherElements Identity Reshape Shape Slice Squeeze Transpose "
    "Unsqueeze Where"
)
BOOLS = "And Not Or Xor"

_NUMBERS = ("FLOAT", "FLOAT16", "BFLOAT16", "INT32", "INT64")
TYPES = {
    operator: types
    for operators, types in (
        (FLOATS, _NUMBERS[:3]),
        (NUMBERS, _NUMBERS),
        (ALL, (*_NUMBERS, "BOOL")),
        (BOOLS, ("BOOL",)),
    )
    for operator in operators.split()
}


def refused(model: ModelProto, types: Mapping[str, int]) -> list[str]:
    """Return in words, with counts, what of a model TensorRT does not take.

    types  of its tensors, by name; those that are not there are not looked at
    """
    found: Counter[str] = Counter()
    opset = max(each.version for each in model.opset_import)
    if opset not in OPSETS:
        found[f"opset {opset}"] += 1
    for node in model.graph.node:
        if node.op_type not in TYPES:
            found[node.op_type] += 1
            continue
        operand = [*node.input, ""][1 if node.op_type == "Where" else 0]
        name = TensorProto.DataType.Name(types.get(operand, 0))
        if operand in types and name not in TYPES[node.op_type]:
            found[f"{node.op_type} of {name.lower()}"] += 1
    return [f"{what} ({count})" for what, count in sorted(found.items())]


def command(path: str, shapes: Iterable[tuple[str, str]]) -> str:
    """Return the line that builds an engine from a model.

    shapes  of the inputs with sizes that calls give: name and an example, as in 1x3x224x224
    """
    stem = path.removesuffix(".onnx")
    words = [
        "trtexec",
        f"--onnx={path}",
        f"--saveEngine={stem}.engine",
        f"--timingCacheFile={stem}.timing",
    ]
    if given := ",".join(f"{name}:{shape}" for name, shape in shapes):
        words += [f"--{which}Shapes={given}" for which in ("min", "opt", "max")]
    return shlex.join(words)
