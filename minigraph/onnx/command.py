"""ONNX models on the command line: `minigraph run`, `info` and `bench`."""

from __future__ import annotations

import math
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import ValueInfoProto, defs

from minigraph.errors import GraphError, reason
from minigraph.graph import FLOATS, Array, SymbolicSize, UndecidedSize
from minigraph.graph.location import Location, Within
from minigraph.onnx.interpret import NESTED, key
from minigraph.onnx.model import function, input_of, inputs_of, load
from minigraph.onnx.operators import ROWS
from minigraph.onnx.tensors import MIN_OPSET, opsets_of, read
from minigraph.program import on_host

Output = tuple[dict[str, Any], list[str]]  # as JSON, and as lines for a person
COLUMNS = 100
UNDECIDED_TEXT = "decided by calls"  # a shape
DEFAULT_OPEN_SIZE = 64  # an open size: the length of a text, the side of an image


def run(path: str, files: Sequence[str], out: str | None, device: str, level: int) -> Output:
    """Run a model on arrays from files; return the results, and the time of a second call."""
    arrays = []
    for file in files:
        try:
            arrays.append(np.load(file, allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise GraphError(f"run: {file} cannot be read ({reason(error)})") from None
    graph = read("run", path).model.graph
    if len(arrays) != len(inputs_of(graph)):
        names = ", ".join(info.name for info in inputs_of(graph))
        raise GraphError(f"run: got {len(arrays)} times --input for the inputs {names}")
    call = function(path, device, {"graph_opt_level": level})
    with Within(source=Location(path, 0)):  # for errors, as no line of Python made the nodes
        call(*arrays)
    start = time.perf_counter()
    result = call(*arrays)
    seconds = time.perf_counter() - start
    outputs = result if isinstance(result, list) else [result]
    results = dict(zip([y.name for y in graph.output], map(on_host, outputs), strict=True))
    if out:
        try:
            np.savez(out, **results)
        except OSError as error:
            raise GraphError(f"run: {out} cannot be written ({reason(error)})") from None
    specs = {name: f"{x.dtype.name}{[*x.shape]}" for name, x in results.items()}
    lines = [f"{name}: {specs[name]} {_brief(x)}" for name, x in results.items()]
    return {"outputs": specs, "seconds": seconds}, [*lines, f"{seconds * 1e3:.2f} ms"]


def _brief(x: Any) -> str:
    if not x.size:
        return "no elements"
    x = x.astype(np.float64)
    return f"from {x.min():g} to {x.max():g}, mean {x.mean():g}"


def describe(path: str) -> Output:
    """Return a model's inputs, outputs and operators."""
    proto = read("info", path).model
    names = [y.name for y in proto.graph.output]
    try:
        model = load(path)
        specs = [str(y.spec) for y in model.outputs]
        parameters = [p.shape for p in model.parameters]
    except UndecidedSize:
        specs = [UNDECIDED_TEXT] * len(names)
        parameters = [tuple(x.dims) for x in proto.graph.initializer]
    tables: dict[str, dict[str, Any]] = {
        "inputs": {x.name: _declared(x) for x in inputs_of(proto.graph)},
        "outputs": dict(zip(names, specs, strict=True)),
        "operators": dict(Counter(key(node) for node in proto.graph.node).most_common()),
    }
    data: dict[str, Any] = {
        "producer": f"{proto.producer_name} {proto.producer_version}".strip() or None,
        "opset": opsets_of(proto.opset_import).get(""),
        "parameters": sum(map(math.prod, parameters)),
        **tables,
    }
    texts = {name: ", ".join(f"{k} {v}" for k, v in rows.items()) for name, rows in tables.items()}
    lines = []
    for name, value in data.items():
        text = f"{name:12}{texts.get(name, value)}"
        lines += textwrap.wrap(text, COLUMNS, subsequent_indent=" " * 12)
    return data, lines


def _declared(info: ValueInfoProto) -> str:
    try:
        return str(input_of("info", info).spec)
    except UndecidedSize:
        return UNDECIDED_TEXT


def called_function(path: str) -> Any:
    """Return the function of a model after a call."""
    call = function(path)
    call(*random_inputs(path, 1).values())
    return call


def random_inputs(path: str, batch: int) -> dict[str, Array]:
    """Return a random array for each input of a model: floats in [0, 1); integers and bools 0 or 1.

    batch  size of the first axis if it is symbolic in the file; other symbolic sizes are
           `DEFAULT_OPEN_SIZE`
    """
    rng, arrays = np.random.default_rng(0), {}
    for info in inputs_of(read("bench", path).model.graph):
        x = input_of("bench", info)
        sizes = [batch, *[DEFAULT_OPEN_SIZE] * x.ndim]
        shape = [
            m if isinstance(n, SymbolicSize) else n for n, m in zip(x.shape, sizes, strict=False)
        ]
        draw = rng.random(shape) if x.dtype in FLOATS else rng.integers(0, 2, shape)
        arrays[info.name] = draw.astype(x.dtype)
    return arrays


def operators() -> Output:
    """Return the supported operators: those with rows, and those that ONNX defines as functions."""
    schemas = [s for s in defs.get_all_schemas() if not s.domain and not s.deprecated]
    defined = {s.name for s in schemas if s.has_function or s.has_context_dependent_function}
    rows = sorted((*ROWS, *NESTED))
    others = sorted(name for name in defined - {*rows} if not name.startswith("Sequence"))
    opsets = [MIN_OPSET, defs.onnx_opset_version()]
    lines = [f"opsets {opsets[0]} to {opsets[1]}"]
    for title, names in (("computed", rows), ("computed as ONNX defines them", others)):
        lines += ["", f"{title}:", *textwrap.wrap(" ".join(names), COLUMNS)]
    return {"opsets": opsets, "operators": rows, "defined_by_onnx": others}, lines
