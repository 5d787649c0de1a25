"""Named arrays: to files and back, and into parameters.

Files are safetensors, which hold shapes, dtypes and bytes, so nothing is unpickled.  The format has
no checksum: `save` adds one to the file's metadata, which other readers ignore.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.numpy
from msgspec import Struct
from msgspec.json import Decoder

from minigraph.arguments import FilePath, checked
from minigraph.errors import DTypeError, GraphError, ShapeError, reason, warn_once
from minigraph.graph import (
    BFLOAT16,
    BOOL,
    DTYPES,
    Array,
    Node,
    Parameter,
    as_array,
    assign_all,
    values_of,
)
from minigraph.platform import regular_file
from minigraph.platform.records import decode

# The format's names: F32, I64, ...
NAMES = {"BF16": BFLOAT16, "BOOL": BOOL} | {
    f"{d.kind.upper()}{8 * d.itemsize}": d for d in DTYPES if d.kind in "fiu"
}
CHECKSUM = "minigraph.crc32"
# File endings of other formats, with the functions that read them.
OTHER_READERS = {".pt": "torch.load", ".pth": "torch.load", ".npy": "np.load", ".npz": "np.load"}
PICKLE_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
PICKLE_FRAME = b"\x95"  # the opcode before the length of a pickle's frame
MOST_NAMES = 10  # that an error lists
OPTIONAL = "num_batches_tracked"  # files of early versions of PyTorch have none


class _SafetensorsHeader(Struct, rename={"metadata": "__metadata__"}):
    """The part of a safetensors header that the library does not return, which may be null."""

    metadata: dict[str, str] | None = None


HEADER = Decoder(_SafetensorsHeader)


class Incompatible(NamedTuple):
    """The names that a state lacks, and its names that nothing has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


@checked
def save(path: FilePath, state: Any) -> None:
    """Write a module's or an optimizer's state, or a mapping of names to arrays, to `path`.

    Values are NumPy arrays, torch tensors, numbers, and parameters, whose values are those of one
    time: steps in other threads come before or after.  The file appears whole or not at
    all: an earlier one stays as it was until the new one is on disk.  DTypeError for a value that
    is no array; GraphError for a file that cannot be written.  A name that ends as those of torch
    or NumPy is a warning.

    >>> mg.save("net.safetensors", nn.Linear(2, 1))
    >>> sorted(mg.load("net.safetensors"))
    ['bias', 'weight']
    """
    if reader := OTHER_READERS.get(os.path.splitext(path)[1].lower()):
        warn_once(
            f"save: {path} will be a safetensors file, which mg.load reads and {reader} does not; "
            "call it .safetensors",
            cause=f"save: a file of {reader}",
        )
    named = state.state_dict() if hasattr(state, "state_dict") else state
    values = host_arrays("save", named)
    arrays = {name: np.asarray(value, order="C") for name, value in values.items()}
    if "__metadata__" in arrays:
        raise GraphError("save: safetensors keeps the name __metadata__ for itself; use another")
    try:
        data = safetensors.numpy.save(arrays, {CHECKSUM: str(_checksum(arrays))})
        regular_file.replace(path, data)
    except (OSError, ValueError) as error:
        raise GraphError(f"save: {path} cannot be written ({reason(error)})") from error


@checked
def load(path: FilePath) -> dict[str, Array]:
    """Return the arrays of a safetensors file by name, new and writable.

    GraphError if the file is missing, damaged, of another format, or has arrays of unknown dtypes.

    >>> mg.save("weights.safetensors", {"w": np.zeros(3)})
    >>> mg.load("weights.safetensors")
    {'w': array([0., 0., 0.])}
    """
    try:
        data = regular_file.read(path)
    except (OSError, ValueError) as error:
        raise GraphError(f"load: {path} cannot be read ({reason(error)})") from error
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        other = _other_format(path, data) or f"no safetensors file, or damaged ({error})"
        raise GraphError(f"load: {path} is {other}") from error
    arrays: dict[str, Array] = {}
    for name, entry in entries:
        try:
            arrays[name] = _array(**entry)
        except ValueError as error:
            raise GraphError(f"load: {path} holds {name!r} as {error}") from error
    expected = _metadata(data).get(CHECKSUM)
    if expected is not None and expected != str(_checksum(arrays)):
        raise GraphError(f"load: {path} is damaged: its checksum is not that of its contents")
    return arrays


def _other_format(path: str | os.PathLike[str], data: bytes) -> str:
    """Return the format of a file of torch or NumPy, and its reader, in words; "" for others."""
    member = data[30 : 30 + int.from_bytes(data[26:28], "little")]  # the first one of a zip
    zipped = data.startswith(b"PK\x03\x04")
    if data.startswith(b"\x93NUMPY") or (zipped and member.endswith(b".npy")):
        return "a file of np.save or np.savez; np.load reads it"
    # A damaged safetensors file may begin as a pickle does: its first 8 bytes are a length, whose
    # upper bytes are 0.
    not_a_length = any(data[4:8]) or data[2:3] == PICKLE_FRAME
    pickled = data[:1] == b"\x80" and data[1:2] in PICKLE_PROTOCOLS and not_a_length
    if pickled or (zipped and member.endswith(b"/data.pkl")):
        return (
            "a pickle, as torch.save writes it, which could run any program; with PyTorch, make a "
            "safetensors file of its tensors: safetensors.torch.save_file("
            f"torch.load({str(path)!r}), {os.path.splitext(path)[0] + '.safetensors'!r})"
        )
    return ""


def _array(dtype: str, shape: Sequence[int], data: bytes) -> Array:
    """Return an array of a file, new and writable; ValueError if there can be none."""
    if dtype not in NAMES:
        raise ValueError(f"{dtype}, no dtype of ours")
    flat = np.frombuffer(data, NAMES[dtype])
    if NAMES[dtype] == BOOL and (flat.view(np.uint8) > 1).any():
        raise ValueError("BOOL with a byte that is neither 0 nor 1")
    try:
        return flat.reshape(shape).copy()
    except (ValueError, OverflowError) as error:  # too many axes, or too long beside an empty one
        raise ValueError(f"{dtype} of shape {tuple(shape)} ({error})") from None


def restore(
    what: str, parameters: Mapping[str, Parameter], state: Any, strict: bool = True
) -> Incompatible:
    """Assign the arrays of a state to the parameters of the same names: all of them, or none.

    Arrays are cast by NumPy's "same_kind" rule.  Returns the names that only one side has, which
    are errors if `strict`; the count of batches of a BatchNorm may be missing, as in torch.  A
    GraphError (ShapeError, DTypeError if that is all) lists up to ten mistakes; its message begins
    with `what`.
    """
    arrays = host_arrays(what, state)
    missing = [n for n in parameters if n not in arrays and n.rpartition(".")[2] != OPTIONAL]
    unexpected = [name for name in arrays if name not in parameters]
    none_fits = len(unexpected) == len(arrays)
    if strict and none_fits and (prefix := _prefix(unexpected, parameters)):
        raise GraphError(
            f"{what}: all names begin with {prefix!r}, without which they would be right: "
            f"{{name.removeprefix({prefix!r}): x for name, x in state.items()}}"
        )
    misfits: list[tuple[type[GraphError], str]] = []
    values: list[tuple[Parameter, Array]] = []
    for name, parameter in parameters.items():
        if name not in arrays:
            continue
        if arrays[name].shape != parameter.shape:
            text = f"{name} has shape {arrays[name].shape}, not {parameter.shape}"
            misfits.append((ShapeError, text))
            continue
        try:
            values.append((parameter, as_array(arrays[name], parameter.dtype)))
        except DTypeError as error:
            misfits.append((DTypeError, f"{name}: {error}"))
    names = {"missing ": missing, "unexpected ": unexpected} if strict else {}
    problems = [(word, ", ", texts) for word, texts in names.items() if texts]
    classes = {GraphError for _ in problems} | {error for error, _ in misfits}
    if misfits:
        problems.append(("", "; ", [text for _, text in misfits]))
    if problems:
        most = MOST_NAMES // len(problems)
        text = "; ".join(word + _few(texts, between, most) for word, between, texts in problems)
        raise (classes.pop() if len(classes) == 1 else GraphError)(f"{what}: {text}")
    assign_all(values)
    return Incompatible(missing, unexpected)


def _prefix(names: Sequence[str], expected: Container[str]) -> str:
    """Return the prefix of all names, such as "module.", without which some are expected."""
    parts = "".join(names[:1]).split(".")
    for count in range(1, len(parts)):
        prefix = ".".join(parts[:count]) + "."
        bare = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if len(bare) == len(names) and any(name in expected for name in bare):
            return prefix
    return ""


def _few(texts: Sequence[str], between: str, most: int) -> str:
    """Return texts in a line, the first ones and the number of the others where there are many."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return between.join(texts[:most]) + more


def host_arrays(what: str, named: Any) -> dict[str, Array]:
    """Return the values of a mapping as NumPy arrays; DTypeError names a value that is no array."""
    if not isinstance(named, Mapping):
        raise GraphError(f"{what}: a mapping of names to arrays, not {type(named).__name__}")
    arrays: dict[str, Array] = {}
    parameters = values_of({k: v for k, v in named.items() if isinstance(v, Parameter)})
    for name, value in named.items():
        if not isinstance(name, str):
            raise GraphError(f"{what}: names are strings, not {name!r}")
        if isinstance(value, Mapping) or hasattr(value, "state_dict"):
            state = "v.items()" if isinstance(value, Mapping) else "v.state_dict().items()"
            raise DTypeError(
                f"{what}: {name} has names of its own; a file has one list of them, such as "
                f'{{f"{name}.{{k}}": x for k, x in {state}}}'
            )
        try:
            arrays[name] = _host_array(parameters.get(name, value))
        except DTypeError as error:
            raise DTypeError(f"{what}: {name}: {error}") from None
    return arrays


def _host_array(value: Any) -> Array:
    if isinstance(value, Node):
        raise DTypeError("an expression is no array; compute it, or give a Parameter")
    if hasattr(value, "detach"):  # a torch tensor: NumPy refuses those that require a gradient
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return value.float().numpy().astype(BFLOAT16)
    return as_array(value)


def _checksum(arrays: Mapping[str, Array]) -> int:
    """Return the CRC-32 of names, dtypes, shapes and bytes."""
    crc = 0
    for name in sorted(arrays):
        array = arrays[name]
        crc = zlib.crc32(f"{name} {array.dtype.name} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8), crc)
    return crc


def _metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of a valid safetensors file: 8 bytes for its length, then JSON."""
    return decode(HEADER, data[8 : 8 + int.from_bytes(data[:8], "little")]).metadata or {}
