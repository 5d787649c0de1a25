"""Graphs as models of ONNX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import onnx
from onnx import ModelProto, NodeProto, external_data_helper, helper

from minigraph.arguments import FilePath, Kind, checked
from minigraph.compiler.trace import TracedGraph
from minigraph.errors import GraphError, reason
from minigraph.graph import Graph, Node, is_symbolic
from minigraph.graph_file import written
from minigraph.onnx import tensorrt
from minigraph.onnx.exports import EXPORTS
from minigraph.onnx.exports.writer import Writer, info, pruned, tensor
from minigraph.passes.library.mixed_precision import autocast
from minigraph.passes.notes import Notes
from minigraph.platform import regular_file
from minigraph.version import __version__

FIRST_OPSET = 18
NEWEST_OPSET = onnx.defs.onnx_opset_version()
MOST_BYTES = 1_900_000_000  # of arrays in the file itself: protobuf's limit is 2**31
EXTERNAL = 1024  # bytes from which on an array is in the file beside it


def _opset(value: Any) -> int:
    if type(value) is not int or not FIRST_OPSET <= value <= NEWEST_OPSET:
        raise ValueError
    return value


OPSET = Kind(f"an opset from {FIRST_OPSET} to {NEWEST_OPSET}", _opset)


@checked
def save(
    path: FilePath,
    inputs: Any,
    outputs: Any = None,
    *,
    opset: Annotated[int, OPSET] = FIRST_OPSET,
    check: Literal["tensorrt"] | None = None,
) -> None:
    """Write a graph, or a compiled function, to `path` as a model of ONNX.

    inputs   of the graph; or a function of `compile`, whose graph is written as it was before the
             passes, with the casts of its option `amp`.  The new values of parameters that it
             updates are further results, "<name>.new"
    outputs  an expression, a list, or a dict, whose names the results have; they are called
             "output", "output_1" and so on where they have no names
    opset    the version of the operators
    check    "tensorrt": an error for what TensorRT's table of operators lacks, and the command that
             builds an engine is printed

    Parameters keep their names, and nodes are called after the layers that made them.  Sizes that
    calls give, as of (None, 784), have their names.  The model has passed ONNX's checker; arrays of
    more than 1.9 GB together are in a second file, `<path>.data`.  GraphError if the file cannot be
    written, and for ops that ONNX does not have: all of them, with counts.

    >>> x = mg.input("x", (None, 4))
    >>> mg.onnx.save("net.onnx", [x], nn.Linear(4, 2)(x))
    """
    traced, options = written("onnx.save", inputs, outputs)
    amp = options.get("amp", "off")
    if amp != "off":
        traced = replace(traced, graph=autocast(traced.graph, Notes(), amp))
    writer = Writer(EXPORTS)
    model = _model(traced, writer, opset)
    total = sum(array.nbytes for array in writer.initializers.values())
    data = b"" if total <= MOST_BYTES else _moved(model, os.path.basename(path) + ".data")
    try:
        if not data:
            onnx.checker.check_model(model, full_check=True)
        if check == "tensorrt":
            _check_tensorrt(model)
        if data:
            regular_file.replace(f"{os.fspath(path)}.data", data)
        regular_file.replace(path, model.SerializeToString())
        if data:
            onnx.checker.check_model(os.fspath(path), full_check=True)
    except (OSError, ValueError) as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"onnx.save: {path} cannot be written ({reason(error)})") from error
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        text = " ".join(str(error).split())
        raise GraphError(f"onnx.save: ONNX's checker refuses the model: {text}") from error
    if check == "tensorrt":
        print(_trtexec(os.fspath(path), traced.inputs))


def _named_outputs(traced: TracedGraph) -> dict[str, Node]:
    """Return the results and new values by the names that they get."""
    results = list(traced.graph.outputs[: traced.results])
    packed = traced.pack(results)
    if isinstance(packed, Mapping):
        named = {str(name): y for name, y in packed.items()}
    else:
        named = {f"output_{i}" if i else "output": y for i, y in enumerate(results)}
    news = traced.graph.outputs[traced.results :]
    return named | {f"{p.name}.new": y for p, y in zip(traced.updates, news, strict=True)}


def _model(traced: TracedGraph, writer: Writer, opset: int) -> ModelProto:
    """Return the model of a graph; GraphError with all ops that ONNX does not have."""
    named = _named_outputs(traced)
    graph = Graph(traced.graph.inputs, tuple(named.values()))
    writer.declare(traced.inputs)
    writer.write(graph)
    if writer.missing:
        listed = ", ".join(f"{name} ({n})" for name, n in sorted(writer.missing.items()))
        raise GraphError(f"onnx.save: ONNX does not have these ops as they are used here: {listed}")
    outputs = _name_outputs(writer, named)
    nodes, read = pruned(writer.nodes, outputs)
    arrays = {name: a for name, a in writer.initializers.items() if name in read}
    made = helper.make_graph(
        nodes,
        "minigraph",
        [info(writer.values[x], x.spec) for x in traced.inputs],
        [info(name, y.spec) for name, y in zip(outputs, named.values(), strict=True)],
        [tensor(name, array) for name, array in arrays.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(
        made,
        opset_imports=imports,
        ir_version=helper.find_min_ir_version_for(imports),
        producer_name="minigraph",
        producer_version=__version__,
    )


def _name_outputs(writer: Writer, named: Mapping[str, Node]) -> list[str]:
    """Return the names of the outputs, which the nodes that make them have from now on."""
    made = {name for node in writer.nodes for name in node.output}
    outputs: list[str] = []
    renamed: dict[str, str] = {}
    for wanted, node in named.items():
        value, name = writer.values[node], writer.unique(wanted)
        outputs.append(name)
        if value in made and value not in renamed:
            renamed[value] = name
        else:  # an input, a constant, or the same as another output
            writer.nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}/y"))
    _rename(writer.nodes, renamed)
    return outputs


def _rename(nodes: Sequence[NodeProto], renamed: Mapping[str, str]) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            names[:] = [renamed.get(name, name) for name in names]
        for attribute in node.attribute:
            _rename(attribute.g.node, renamed)


def _moved(model: ModelProto, location: str) -> bytes:
    """Take the large arrays out of a model and return them, one behind the other."""
    data = bytearray()
    for each in model.graph.initializer:
        raw = each.raw_data
        if len(raw) >= EXTERNAL:
            data += bytes(-len(data) % 64)
            external_data_helper.set_external_data(each, location, len(data), len(raw))
            each.ClearField("raw_data")
            data += raw
    return bytes(data)


# ---------------------------------------------------------------- TensorRT


def _check_tensorrt(model: ModelProto) -> None:
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {each.name: each.data_type for each in inferred.initializer}
    if lacking := tensorrt.refused(model, types):
        raise GraphError(
            f"onnx.save: onnx-tensorrt {tensorrt.VERSION} does not take {', '.join(lacking)}"
        )


def _trtexec(path: str, inputs: Sequence[Node]) -> str:
    """Return the command that builds an engine, with 1 for each size that calls give."""
    shapes = [
        (x.name, "x".join("1" if is_symbolic([n]) else str(n) for n in x.shape))
        for x in inputs
        if is_symbolic(x.shape)
    ]
    return tensorrt.command(path, shapes)
