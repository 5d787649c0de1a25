"""Write graphs as ONNX models, and check them for TensorRT's parser (onnx-tensorrt 10.15)."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import onnx
from onnx import ModelProto, TensorProto, external_data_helper, helper, numpy_helper

from minigraph.arguments import FilePath, at_least, checked
from minigraph.compiler.trace import TracedGraph
from minigraph.errors import GraphError, reason
from minigraph.graph import Array, Node, Spec, SymbolicSize, is_symbolic
from minigraph.graph_file import output_names, traced_graph
from minigraph.onnx.exports import EXPORTS
from minigraph.onnx.tensors import every
from minigraph.onnx.writer import Writer, info, pruned
from minigraph.passes.library.mixed_precision import autocast
from minigraph.passes.notes import Notes
from minigraph.platform import regular_file
from minigraph.platform.records import one_line
from minigraph.version import __version__

FIRST_OPSET = 18
NEWEST_OPSET = onnx.defs.onnx_opset_version()
MAX_EMBEDDED_BYTES = 1_900_000_000  # of arrays in the file itself: protobuf's limit is 2**31
# Smaller arrays stay in the model itself: they may determine shapes.
MIN_EXTERNAL_BYTES = 1024


@checked
def save(
    path: FilePath,
    inputs: Any,
    outputs: Any = None,
    *,
    opset: Annotated[int, at_least(FIRST_OPSET, most=NEWEST_OPSET)] = FIRST_OPSET,
    check: Literal["tensorrt"] | None = None,
) -> None:
    """Write a graph, or a compiled function, to `path` as an ONNX model.

    inputs   of the graph; or a function of `compile`, whose graph before the passes is written,
             with the casts of its option `amp`.  The new values of updated parameters are further
             results, "<name>.new"
    outputs  an expression, a list, or a dict with the names of the results; the default names are
             "output", "output_1" and so on
    opset    version of the operators
    check    "tensorrt": raise an error for operators that TensorRT lacks, and print the command
             that builds an engine

    Parameters keep their names, and nodes are named after their layers.  Symbolic sizes, as of
    (None, 784), have their names.  ONNX's checker checks the model; arrays of more than 1.9 GB in
    total are in a second file, `<path>.data`.  Raises GraphError if the file cannot be written,
    and for all ops that ONNX lacks, with counts.

    >>> x = mg.input("x", (None, 4))
    >>> mg.onnx.save("net.onnx", [x], nn.Linear(4, 2)(x))
    """
    traced, options = traced_graph("onnx.save", inputs, outputs)
    if options.get("amp", "off") != "off":
        traced = replace(traced, graph=autocast(traced.graph, Notes(), options["amp"]))
    writer = Writer(EXPORTS)
    writer.declare(traced.inputs)
    writer.write(traced.graph)
    if writer.missing:
        listed = ", ".join(f"{name} ({n})" for name, n in sorted(writer.missing.items()))
        hint = "; modules in eval() mode draw no random numbers" if "random" in listed else ""
        raise GraphError(f"onnx.save: ONNX cannot express these ops of the graph: {listed}{hint}")
    model, arrays = _model(traced, writer, opset)
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        text = one_line(str(error))
        raise GraphError(f"onnx.save: ONNX's checker refuses the model: {text}") from error
    if check == "tensorrt":
        check_for_tensorrt(model)
    data = _fill(model, arrays, f"{os.path.basename(path)}.data")
    try:
        if data:
            regular_file.replace(f"{os.fspath(path)}.data", data)
        regular_file.replace(path, model.SerializeToString())
    except (OSError, ValueError) as error:
        raise GraphError(f"onnx.save: {path} cannot be written ({reason(error)})") from error
    if check == "tensorrt":
        print(trtexec(os.fspath(path), traced.inputs))


def _model(
    traced: TracedGraph, writer: Writer, opset: int
) -> tuple[ModelProto, Mapping[str, Array]]:
    """Return the model, with large arrays as inputs for now, and these arrays by name."""
    outputs = _name_outputs(traced, writer)
    nodes, used = pruned(writer.nodes, outputs)
    arrays = {name: array for name, array in writer.initializers.items() if name in used}
    large = {name: array for name, array in arrays.items() if array.nbytes >= MIN_EXTERNAL_BYTES}
    graph = helper.make_graph(
        nodes,
        "minigraph",
        [info(writer.values[x], x.spec) for x in traced.inputs]
        + [info(name, Spec(array.shape, array.dtype)) for name, array in large.items()],
        [info(name, y.spec) for name, y in zip(outputs, traced.graph.outputs, strict=True)],
        [numpy_helper.from_array(a, name) for name, a in arrays.items() if name not in large],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        graph,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports),
        producer_name="minigraph",
        producer_version=__version__,
    )
    return model, large


def _fill(model: ModelProto, arrays: Mapping[str, Array], location: str) -> bytes:
    """Turn a model's last inputs into these arrays; return the data of an external file, if any.

    location  name of the external file
    """
    graph, data = model.graph, bytearray()
    is_external = sum(array.nbytes for array in arrays.values()) > MAX_EMBEDDED_BYTES
    del graph.input[len(graph.input) - len(arrays) :]
    for name, array in arrays.items():
        tensor = numpy_helper.from_array(array, name)
        if is_external:
            data += bytes(-len(data) % 64)
            external_data_helper.set_external_data(tensor, location, len(data), array.nbytes)
            data += tensor.raw_data
            tensor.ClearField("raw_data")
        graph.initializer.append(tensor)
    return bytes(data)


def _name_outputs(traced: TracedGraph, writer: Writer) -> list[str]:
    """Return the names of the outputs, and rename the results of nodes to them."""
    names = output_names("onnx.save", traced)
    if not isinstance(names, list):
        names = [f"output_{i}" if i else "output" for i in range(traced.results)]
    names += [f"{parameter.name}.new" for parameter in traced.updates]
    results = {name for node in writer.nodes for name in node.output}
    outputs: list[str] = []
    renamed: dict[str, str] = {}
    for output_name, y in zip(names, traced.graph.outputs, strict=True):
        value, name = writer.values[y], writer.unique(output_name)
        outputs.append(name)
        if value in results and value not in renamed:
            renamed[value] = name
        else:  # an input, a constant, or the same as another output
            writer.nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}/y"))
    for node in every(writer.nodes):
        for each in (node.input, node.output):
            each[:] = [renamed.get(name, name) for name in each]
    return outputs


VERSION = "10.15"
OPSETS = range(9, 25)
NUMERIC_TYPES = ("FLOAT", "FLOAT16", "BFLOAT16", "INT32", "INT64")
# The operators that exports write, by the types of the first operand that TensorRT supports.
TABLE = {
    NUMERIC_TYPES[:3]: (
        "Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Clip Conv "
        "ConvTranspose Cos Cosh CumSum Erf Exp Floor Gemm HardSwish IsInf LRN LeakyRelu Log "
        "LogSoftmax MatMul MaxPool PRelu Reciprocal Round Scan Sigmoid Sin Sinh Softmax Sqrt Tan "
        "Tanh"
    ),
    NUMERIC_TYPES: (
        "Abs Add ArgMax Div Equal Greater GreaterOrEqual IsNaN Less LessOrEqual Max Min Mod Mul "
        "Neg Pad Pow Range ReduceMax ReduceMin ReduceProd ReduceSum Relu ScatterElements Sign Sub "
        "TopK"
    ),
    (*NUMERIC_TYPES, "BOOL"): (
        "Cast Concat Expand Gather GatherElements Identity Reshape Shape Slice Squeeze Transpose "
        "Unsqueeze Where"
    ),
    ("BOOL",): "And Not Or Xor",
}
TYPES = {name: types for types, names in TABLE.items() for name in names.split()}


def check_for_tensorrt(model: ModelProto) -> None:
    """Raise GraphError for operators and types that TensorRT does not take, with counts."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    types = {
        value.name: TensorProto.DataType.Name(value.type.tensor_type.elem_type)
        for value in (*inferred.input, *inferred.value_info, *inferred.output)
    }
    unsupported: Counter[str] = Counter()
    if model.opset_import[0].version not in OPSETS:
        unsupported[f"opset {model.opset_import[0].version}"] += 1
    for node in every(inferred.node):
        operand = [*node.input, ""][1 if node.op_type == "Where" else 0]
        if node.op_type not in TYPES:
            unsupported[node.op_type] += 1
        elif operand in types and types[operand] not in TYPES[node.op_type]:
            unsupported[f"{node.op_type} of {types[operand].lower()}"] += 1
    if unsupported:
        listed = ", ".join(f"{what} ({n})" for what, n in sorted(unsupported.items()))
        raise GraphError(f"onnx.save: onnx-tensorrt {VERSION} does not take {listed}")


def trtexec(path: str, inputs: Sequence[Node]) -> str:
    """Return the command that builds an engine from a model, with 1 for symbolic sizes."""
    shapes = ",".join(
        f"{x.name}:" + "x".join(map(_smallest, x.shape)) for x in inputs if is_symbolic(x.shape)
    )
    stem = path.removesuffix(".onnx")
    words = [f"--onnx={path}", f"--saveEngine={stem}.engine", f"--timingCacheFile={stem}.timing"]
    words += [f"--{which}Shapes={shapes}" for which in ("min", "opt", "max") if shapes]
    return shlex.join(["trtexec", *words])


def _smallest(size: int) -> str:
    return str(size.at(dict.fromkeys(size.names, 1)) if isinstance(size, SymbolicSize) else size)
