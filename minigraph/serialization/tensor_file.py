"""Files of named arrays: safetensors, and indices of several such files.

A file has the length of its header, the header in JSON, and the bytes of the arrays.  The format
has no checksum; minigraph writes one to the metadata, which other readers ignore.
"""

from __future__ import annotations

import math
import mmap
import os
import zlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.json import Decoder

from minigraph.errors import GraphError, reason
from minigraph.graph import BFLOAT16, BOOL, DTYPES, Array
from minigraph.platform import regular_file
from minigraph.platform.records import decode

# The format's names: F32, I64, ...
NAMES = {"BF16": BFLOAT16, "BOOL": BOOL} | {
    f"{d.kind.upper()}{8 * d.itemsize}": d for d in DTYPES if d.kind in "fiu"
}
CHECKSUM_KEY = "minigraph.crc32"
METADATA_KEY = "__metadata__"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
INDEX_SUFFIX = ".json"

Size = Annotated[int, msgspec.Meta(ge=0)]
Metadata = dict[str, str]


class _Entry(Struct, forbid_unknown_fields=True):
    """The first byte of an array after the header, and the first byte after the array."""

    dtype: str
    shape: list[Size]
    data_offsets: tuple[Size, Size]


class _Index(Struct):
    """An index: the file of each array."""

    weight_map: dict[str, str]


HEADER_DECODER = Decoder(dict[str, msgspec.Raw])
ENTRY_DECODER = Decoder(_Entry)
METADATA_DECODER = Decoder(Metadata | None)
INDEX_DECODER = Decoder(_Index)


def write(what: str, path: Any, arrays: Mapping[str, Array], metadata: Metadata) -> None:
    """Write contiguous arrays to a file atomically; raise GraphError if that fails.

    what  begins the errors
    """
    if METADATA_KEY in arrays:
        raise GraphError(f"{what}: safetensors reserves the name {METADATA_KEY}; use another one")
    try:
        checksum = {CHECKSUM_KEY: str(_checksum(arrays, metadata))}
        regular_file.replace(path, _packed(arrays, metadata | checksum))
    except (OSError, ValueError) as error:
        raise GraphError(f"{what}: {path} cannot be written ({reason(error)})") from error


def _packed(arrays: Mapping[str, Array], metadata: Metadata) -> bytes:
    """Return the bytes of a file; arrays with larger elements come first to align all arrays."""
    header: dict[str, Any] = {METADATA_KEY: metadata}
    formats = {dtype: name for name, dtype in NAMES.items()}
    parts, end = [b"", b""], 0
    for name in sorted(arrays, key=lambda name: (-arrays[name].itemsize, name)):
        array = arrays[name]
        begin, end = end, end + array.nbytes
        header[name] = _Entry(formats[array.dtype], list(array.shape), (begin, end))
        parts.append(array.reshape(-1).view(np.uint8))
    text = msgspec.json.encode(header)
    parts[1] = text + b" " * (-len(text) % 8)
    parts[0] = len(parts[1]).to_bytes(8, "little")
    return b"".join(parts)


def contents(what: str, path: Any, mapped: bool) -> Any:
    """Return the bytes of a file.

    mapped  whether to map the file into memory, so that only used pages are read
    """
    try:
        if not mapped:
            return regular_file.read(path)
        file, size = regular_file.open_to_read(path)
        with file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    except (OSError, ValueError) as error:
        raise GraphError(f"{what}: {path} cannot be read ({reason(error)})") from error


def parse(what: str, path: Any, data: Any) -> tuple[dict[str, Array], Metadata]:
    """Return the arrays of a safetensors file, writable, and its metadata.

    The arrays share the memory of a mapping.
    """
    try:
        entries, start, metadata = _header(data)
    except ValueError as error:
        text = f"{what}: {path} is not a safetensors file, or is damaged: it {error}"
        raise GraphError(text) from None
    arrays: dict[str, Array] = {}
    for name, entry in entries.items():
        try:
            arrays[name] = _array(entry, data, start)
        except ValueError as error:
            raise GraphError(f"{what}: {path} has {name!r} as {error}") from error
    expected = metadata.pop(CHECKSUM_KEY, None)
    if expected not in (None, str(_checksum(arrays, metadata))):
        raise GraphError(f"{what}: {path} is damaged: its checksum is not that of its contents")
    return arrays, metadata


def _header(data: Any) -> tuple[dict[str, _Entry], int, Metadata]:
    """Return the entries of a file, the end of its header, and the metadata.

    Raises ValueError for another format.
    """
    length = int.from_bytes(data[:8], "little")
    start = 8 + length
    if len(data) < 8 or length > MAX_HEADER_BYTES or start > len(data):
        raise ValueError("has no header")
    raw = decode(HEADER_DECODER, bytes(data[8:start]))
    metadata = decode(METADATA_DECODER, bytes(raw.pop(METADATA_KEY, msgspec.Raw(b"null")))) or {}
    entries = {name: decode(ENTRY_DECODER, bytes(text)) for name, text in raw.items()}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.data_offsets[0] != end:
            raise ValueError(f"has a gap before {name!r}, or two arrays overlap")
        end = max(end, entry.data_offsets[1])
    if start + end != len(data):
        raise ValueError(f"has {len(data) - start} bytes of arrays where {end} are listed")
    return entries, start, metadata


def _array(entry: _Entry, data: Any, start: int) -> Array:
    """Return an array of a file, writable; raise ValueError if its entry is invalid.

    start  offset of the bytes of arrays
    """
    if entry.dtype not in NAMES:
        raise ValueError(f"{entry.dtype}, an unsupported dtype")
    dtype, count = NAMES[entry.dtype], math.prod(entry.shape)
    begin, end = entry.data_offsets
    if end - begin != count * dtype.itemsize:
        raise ValueError(f"{entry.dtype} of {entry.shape} in {end - begin} bytes: it is damaged")
    flat = np.frombuffer(data, dtype, count, start + begin) if count else np.empty(0, dtype)
    if dtype == BOOL and (flat.view(np.uint8) > 1).any():
        raise ValueError("BOOL with a byte that is neither 0 nor 1")
    try:
        array = flat.reshape(entry.shape)
    except (ValueError, OverflowError) as error:  # too many axes, or too long ones
        raise ValueError(f"{entry.dtype} of shape {tuple(entry.shape)} ({error})") from None
    return array if isinstance(data, mmap.mmap) else array.copy()


def _checksum(arrays: Mapping[str, Array], metadata: Metadata) -> int:
    """Return the CRC-32 of names, dtypes, shapes and bytes, and of metadata."""
    crc = 0
    for name in sorted(arrays):
        array = arrays[name]
        crc = zlib.crc32(f"{name} {array.dtype.name} {array.shape}".encode(), crc)
        crc = zlib.crc32(array.reshape(-1).view(np.uint8), crc)
    return zlib.crc32("".join(f"{k} {v}" for k, v in sorted(metadata.items())).encode(), crc)


def shards(what: str, path: Any) -> dict[str, set[str]]:
    """Return the names of the arrays in each file of an index, by path."""
    try:
        index = decode(INDEX_DECODER, contents(what, path, mapped=False))
    except ValueError as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(f"{what}: {path} {error}; an index has a weight_map") from None
    files: dict[str, set[str]] = {}
    for name, file in index.weight_map.items():
        if os.path.basename(file) != file or file in ("", ".", "..") or file.endswith(INDEX_SUFFIX):
            raise GraphError(f"{what}: {path} lists {name!r} in {file!r}, no weights beside it")
        files.setdefault(os.path.join(os.path.dirname(path), file), set()).add(name)
    return files
