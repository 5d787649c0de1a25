"""Read and check the contents of an ONNX file: the model, its tensors and their types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    defs,
    numpy_helper,
)

from minigraph.errors import DTypeError, GraphError, reason
from minigraph.graph import BFLOAT16, Array, DType
from minigraph.platform import regular_file
from minigraph.platform.records import one_line

# ONNX numbers its types from 1.
NAMES = "float32 uint8 int8 uint16 int16 int32 int64 - bool float16 float64 uint32 uint64"
DTYPES = {code: np.dtype(name) for code, name in enumerate(NAMES.split(), 1) if name != "-"}
DTYPES[TensorProto.BFLOAT16] = BFLOAT16
CODES = {dtype: code for code, dtype in DTYPES.items()}
STANDARD_DOMAINS = ("", "ai.onnx")  # names of the domain of ONNX's own operators
MIN_OPSET = 1
Opsets = Mapping[str, int]


class File(NamedTuple):
    """A model and its location.

    name    in errors and reports
    folder  of external data; None for a model in memory
    """

    model: ModelProto
    name: str
    folder: Path | None


def read(what: str, model: Any) -> File:
    """Return a model, or read it from a path; raise GraphError for anything else.

    what  first words of errors
    """
    if isinstance(model, ModelProto):
        return _checked(what, File(model, one_line(str(model.graph.name)) or "model", None))
    if not isinstance(model, str | PathLike):
        kind = type(model).__name__
        raise GraphError(f"{what}: a model is a path or an onnx.ModelProto, not a {kind}")
    path = Path(fspath(model))
    try:
        proto = onnx.load_model_from_string(regular_file.read(path))
    except (OSError, ValueError) as error:
        raise GraphError(f"{what}: {path} cannot be read ({reason(error)})") from None
    except Exception as error:  # protobuf's, whose class depends on how it was built
        text = one_line(str(error))
        raise GraphError(f"{what}: {path} is not an ONNX model, or is damaged ({text})") from None
    return _checked(what, File(proto, path.name, path.parent))


def _checked(what: str, file: File) -> File:
    if not file.model.graph.node and not file.model.graph.output:
        raise GraphError(f"{what}: {file.name} is not an ONNX model, or has no graph")
    opset = opsets_of(file.model.opset_import).get("", MIN_OPSET)
    newest = defs.onnx_opset_version()
    if not MIN_OPSET <= opset <= newest:
        raise GraphError(
            f"{what}: {file.name} has opset {opset}; opsets {MIN_OPSET} to {newest} are supported, "
            f"the newest of onnx {onnx.__version__}"
        )
    return file


def opsets_of(imports: Iterable[OperatorSetIdProto]) -> Opsets:
    """Return the versions of operators by domain; "" is the domain of ONNX's own operators."""
    return {"" if o.domain in STANDARD_DOMAINS else o.domain: o.version for o in imports}


def every(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, and those of their inner graphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from every(graph.node)


def dtype_of(code: int, prefix: str = "") -> DType:
    """Return the dtype of an ONNX type code; raise DTypeError if it is unsupported.

    prefix  first words of the error
    """
    if code not in DTYPES:
        is_code = code in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(code).lower() if is_code else f"type {code}"
        raise DTypeError(f"{prefix}{name} is not supported")
    return DTYPES[code]


def array_of(tensor: TensorProto, folder: Path | None = None) -> Array:
    """Return a tensor's value, which is mapped into memory if it is external.

    Raises GraphError if its bytes are missing, or their number does not match its shape.
    """
    what, shape = f"the tensor {tensor.name!r}", tuple(tensor.dims)
    dtype = dtype_of(tensor.data_type, f"{what}: ")
    count = math.prod(shape)
    if any(n < 0 for n in shape):
        raise GraphError(f"{what} has the shape {shape}")
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            return _mapped(tensor, dtype, shape, folder)
        if tensor.HasField("raw_data") and len(tensor.raw_data) != count * dtype.itemsize:
            raise ValueError(f"it has {len(tensor.raw_data)} bytes")
        array = numpy_helper.to_array(tensor)
    except (OSError, ValueError, TypeError) as error:
        text = one_line(reason(error))
        kind = f"{dtype.name}{[*shape]}"
        raise GraphError(f"{what} of {kind} is damaged: {text}") from None
    return array.astype(dtype, copy=False)


def _mapped(tensor: TensorProto, dtype: DType, shape: Any, folder: Path | None) -> Array:
    if folder is None:
        raise ValueError("its data is in another file: pass the path of the model")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = (folder / entries.get("location", "")).resolve()
    if not path.is_relative_to(folder.resolve()):  # ONNX's own tools refuse it, too
        raise ValueError(f"{path} is not in the folder of the model")
    offset, nbytes = int(entries.get("offset", 0)), math.prod(shape) * dtype.itemsize
    if offset < 0:
        raise ValueError(f"its data begins at byte {offset} of {path.name}")
    if int(entries.get("length", nbytes)) != nbytes:
        raise ValueError(f"{path.name} has {entries['length']} bytes of it, not {nbytes}")
    if not nbytes:
        return np.empty(shape, dtype)
    if not path.is_file() or path.stat().st_size < offset + nbytes:
        raise ValueError(f"{path.name} is missing or too short")
    return np.asarray(np.memmap(path, dtype, "c", offset, shape))  # changes stay in memory


def attribute_value(attribute: AttributeProto) -> Any:
    """Return an attribute as a Python value: tensors become arrays, graphs stay GraphProtos."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, TensorProto):
        return array_of(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if attribute.type == AttributeProto.STRINGS:
        return [each.decode(errors="replace") for each in value]
    return [*value] if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value
