"""Read files of `torch.save` without PyTorch, and without running their code.

A file is a zip archive of a pickle and the bytes of tensors.  Python's unpickler reads it, but only
with the opcodes that build data, and with the names of this module: its functions rebuild tensors,
and all other classes become `Unread`.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from minigraph.arguments import first_names
from minigraph.errors import GraphError, warn_once
from minigraph.graph import BFLOAT16, BOOL, DTYPES, Array, DType
from minigraph.platform.records import one_line

MAX_PICKLE_BYTES = 2_500_000  # bytes of a pickle, as 20,000 tensors have
OPCODES = (
    *(pickle.APPEND, pickle.APPENDS, pickle.BINBYTES, pickle.BINFLOAT, pickle.BINGET),
    *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.BINPERSID, pickle.BINPUT),
    *(pickle.BINUNICODE, pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE),
    *(pickle.FRAME, pickle.GLOBAL, pickle.LONG1, pickle.LONG_BINGET, pickle.LONG_BINPUT),
    *(pickle.MARK, pickle.MEMOIZE, pickle.NEWFALSE, pickle.NEWTRUE, pickle.NONE, pickle.PROTO),
    *(pickle.REDUCE, pickle.SHORT_BINBYTES, pickle.SHORT_BINUNICODE, pickle.STACK_GLOBAL),
    *(pickle.STOP, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
)


class Unread:
    """An object of a class that is not read."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<unread {self.name}>"

    def __call__(self, *args: Any) -> Unread:
        return self

    def append(self, items: Any) -> None:
        pass

    extend = append


def _tensor(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any = False, hooks: Any = None,
    metadata: Any = None,
) -> Array:  # fmt: skip
    """Return a tensor as a view of its storage; raise ValueError if it exceeds the storage."""
    if metadata and metadata.get("neg"):
        return -_tensor(storage, offset, size, stride)
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise ValueError("it has a tensor without a storage")
    if min(offset, *size, *stride, 0) < 0:
        raise ValueError("it has a tensor with negative sizes")
    if 0 in size:
        return np.empty(size, storage.dtype)
    steps = [(n - 1) * step for n, step in zip(size, stride, strict=True)]
    if offset + sum(steps) >= storage.size:
        raise ValueError("it has a tensor that reaches beyond its storage")
    repeats = any(n > 1 and not step for n, step in zip(size, steps, strict=True))
    strides = [step * storage.itemsize for step in stride]
    view = np.lib.stride_tricks.as_strided
    return view(storage[offset:], size, strides, writeable=not repeats)


def _typed_tensor(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any,
    metadata: Any = None,
) -> Array:  # fmt: skip
    if not isinstance(dtype, np.dtype):
        raise ValueError("it has a tensor without a dtype")
    return _tensor(storage.view(dtype), offset, size, stride, grad, hooks, metadata)


STORAGES = {
    "Half": np.float16,
    "Float": np.float32,
    "Double": np.float64,
    "BFloat16": BFLOAT16,
    "Bool": BOOL,
    "Char": np.int8,
    "Short": np.int16,
    "Int": np.int32,
    "Long": np.int64,
    "Byte": np.uint8,
}
# The values of the names in a pickle.
NAMES: dict[str, Any] = {
    "collections.OrderedDict": dict,  # `dict` would take items, and hash their keys
    "torch.Size": lambda sizes: sizes,
    "torch.Tensor": None,  # an argument of `_rebuild_from_type_v2`
    "torch._tensor._rebuild_from_type_v2": lambda rebuild, kind, arguments, state: rebuild(
        *arguments
    ),
    "torch._utils._rebuild_parameter": lambda data, *unused: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *unused: data,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch.device": lambda *words: ":".join(map(str, words)),
    "torch.storage.UntypedStorage": np.dtype(np.uint8),
    **{f"torch.{dtype.name}": dtype for dtype in DTYPES},
    **{f"torch.{kind}Storage": np.dtype(dtype) for kind, dtype in STORAGES.items()},
}


def read(path: Any, data: Any, mapped: bool) -> dict[str, Any]:
    """Return the saved dict, with arrays for tensors.

    data    of the file
    mapped  whether `data` is a mapping, whose memory the arrays share

    Tensors that shared memory share it again.  Raises GraphError for a damaged file, and for a file
    of any object but a dict with strings as keys.
    """
    try:
        unpickler = _Unpickler(_Archive(data, mapped))
        state = unpickler.load()
    except Exception as error:  # a damaged pickle may raise any error
        text = one_line(f"{type(error).__name__}: {error}")
        raise GraphError(f"load: {path} is damaged, or not of torch.save: {text}") from None
    unread = sorted(map(one_line, unpickler.unread))
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        what = one_line(state.name) if isinstance(state, Unread) else type(state).__name__
        raise GraphError(
            f"load: {path} has an object of {what}; load reads a dict of tensors, such as "
            "torch.save(model.state_dict(), path) writes"
        )
    if unread:
        warn_once(
            f"load: {path} has objects of other classes, which are Unread: {first_names(unread, 8)}"
        )
    return state


class _Archive:
    """The zip archive of a pickle: its members are uncompressed, and in one folder."""

    def __init__(self, data: Any, mapped: bool) -> None:
        self._data, self._mapped = data, mapped
        members = zipfile.ZipFile(data if mapped else io.BytesIO(data)).infolist()
        self._members = {info.filename.partition("/")[2]: info for info in members}
        if sum(info.file_size for info in members) > len(data):
            raise ValueError("the members of the archive overlap, or are compressed")
        if "byteorder" in self._members and bytes(self.bytes_of("byteorder")) != b"little":
            raise ValueError("its numbers are big-endian")

    def bytes_of(self, name: str) -> memoryview:
        """Return a view of the bytes of a member; raise ValueError if they are damaged."""
        info, view = self._members[name], memoryview(self._data)
        lengths = view[info.header_offset + 26 : info.header_offset + 30]  # name, extra
        begin = info.header_offset + 30 + sum(memoryview(lengths.tobytes()).cast("H"))
        content = view[begin : begin + info.file_size]
        if info.compress_type or len(content) < info.file_size or zlib.crc32(content) != info.CRC:
            raise ValueError(f"{name} does not match its checksum")
        return content

    def storage(self, key: str, dtype: DType, count: int) -> Array:
        content = self.bytes_of(f"data/{key}")
        if len(content) != count * dtype.itemsize:
            raise ValueError(f"storage {key} has {len(content)} bytes for {count} numbers")
        if dtype == BOOL and (np.frombuffer(content, np.uint8) > 1).any():
            raise ValueError(f"storage {key} has bools that are neither 0 nor 1")
        flat = np.frombuffer(content, dtype)
        return flat if self._mapped else flat.copy()


class _Unpickler(pickle._Unpickler):
    """Python's unpickler, restricted to OPCODES and NAMES.

    unread  names of the classes that are not read
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self._storages: dict[str, Array] = {}
        self.unread: set[str] = set()
        text = bytes(archive.bytes_of("data.pkl"))
        if len(text) > MAX_PICKLE_BYTES:
            raise ValueError(f"its pickle has {len(text)} bytes, more than {MAX_PICKLE_BYTES}")
        super().__init__(io.BytesIO(text))

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in NAMES:
            return NAMES[full]
        self.unread.add(full)
        return Unread(full)

    def persistent_load(self, named: Any) -> Array:
        kind, dtype, key, _, count = named
        if kind != "storage" or not isinstance(dtype, np.dtype) or not isinstance(key, str):
            raise ValueError(f"it has tensors in {dtype}")
        if key not in self._storages:
            self._storages[key] = self._archive.storage(key, dtype, count)
        return self._storages[key]

    def load_build(self) -> None:
        self.stack.pop()
        if not isinstance(self.stack[-1], dict | Unread):  # an OrderedDict has attributes
            raise ValueError("its pickle gives attributes to an object without attributes")

    def load_newobj(self) -> None:
        self.stack.pop()

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        self._set(self.pop_mark())

    def _set(self, items: list[Any]) -> None:
        container = self.stack[-1]
        if not isinstance(container, dict | Unread):
            raise ValueError("its pickle sets items of an object that is not a dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | None):  # hashing a deep tuple crashes Python
                raise ValueError("its pickle has keys that are neither strings nor numbers")
            if isinstance(container, dict):
                container[key] = value

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{opcode[0]: pickle._Unpickler.dispatch[opcode[0]] for opcode in OPCODES},
        pickle.BUILD[0]: load_build,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }
