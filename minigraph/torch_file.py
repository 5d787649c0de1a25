"""What `torch.save` has written, read without PyTorch, and without running anything.

Such a file is a zip archive of a pickle and of the bytes of tensors.  `pickletools` splits the
pickle into opcodes; here is what those do that build dicts, lists, strings and numbers.  Of the
functions and classes that a pickle names, those in `REBUILT` are functions of ours.  Objects of all
others are left out, and named in a warning.
"""

from __future__ import annotations

import io
import pickletools
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigraph.arguments import few
from minigraph.errors import GraphError, warn_once
from minigraph.graph import BFLOAT16, BOOL, Array, DType, as_dtype
from minigraph.platform.records import one_line

MOST_OPCODES = 1_000_000  # of a pickle: that of 10,000 tensors has 300,000
STORAGES: dict[str, DType] = {
    "torch.BFloat16Storage": BFLOAT16,
    "torch.BoolStorage": BOOL,
    "torch.ByteStorage": np.dtype(np.uint8),
    "torch.CharStorage": np.dtype(np.int8),
    "torch.DoubleStorage": np.dtype(np.float64),
    "torch.FloatStorage": np.dtype(np.float32),
    "torch.HalfStorage": np.dtype(np.float16),
    "torch.IntStorage": np.dtype(np.int32),
    "torch.LongStorage": np.dtype(np.int64),
    "torch.ShortStorage": np.dtype(np.int16),
    "torch.storage.UntypedStorage": np.dtype(np.uint8),
}


class Unread:
    """A function or class that a pickle names, and what it would make."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Arguments(tuple[Any, ...]):
    """A tuple that holds what is not read: only what names a storage may."""

    name = "tuple"


def read(path: Any, data: Any, mapped: bool) -> dict[str, Any]:
    """Return the dict that `torch.save` was given, with arrays for tensors.

    data    of the file
    mapped  whether it is a mapping, in which the arrays then lie

    Tensors that shared memory share it again.  GraphError for a file that is damaged, and for one
    that holds something else than a dict with strings as keys.
    """
    try:
        unpickler = _Unpickler(_Archive(data, mapped))
        made = unpickler.load()
    except (ArithmeticError, LookupError, TypeError, ValueError, NotImplementedError) as error:
        text = one_line(str(error))
        raise GraphError(f"load: {path} is damaged, or not as torch.save writes: {text}") from None
    except zipfile.BadZipFile as error:
        text = one_line(str(error))
        raise GraphError(f"load: {path} is a damaged zip archive: {text}") from None
    unread = [f"{one_line(name)} ({n})" for name, n in sorted(unpickler.unread.items())]
    if not isinstance(made, dict) or not all(isinstance(key, str) for key in made):
        what = one_line(made.name) if isinstance(made, Unread) else type(made).__name__
        raise GraphError(
            f"load: {path} holds an object of {what}; what can be read is a dict of tensors, as "
            "torch.save(model.state_dict(), path) writes it"
        )
    if unread:
        warn_once(f"load: {path}: objects of other classes are left out: {few(unread, 8)}")
    return made


class _Archive:
    """The zip archive around a pickle: its members are stored as they are, in one folder."""

    def __init__(self, data: Any, mapped: bool) -> None:
        self._data, self._mapped = data, mapped
        members = zipfile.ZipFile(data if mapped else io.BytesIO(data)).infolist()
        self._members = {info.filename.partition("/")[2]: info for info in members}
        if sum(info.file_size for info in members) > len(data):
            raise ValueError("the members of the archive overlap, or are compressed")
        if "byteorder" in self._members and bytes(self.bytes_of("byteorder")) != b"little":
            raise ValueError("its numbers are big-endian")

    def bytes_of(self, name: str) -> memoryview:
        """Return the bytes of a member where they lie; ValueError if they are not those written."""
        info, view = self._members[name], memoryview(self._data)
        lengths = view[info.header_offset + 26 : info.header_offset + 30]  # of a name, and of more
        begin = info.header_offset + 30 + sum(memoryview(lengths.tobytes()).cast("H"))
        found = view[begin : begin + info.file_size]
        if info.compress_type or len(found) < info.file_size or zlib.crc32(found) != info.CRC:
            raise ValueError(f"{name} is not what was written")
        return found

    def storage(self, key: str, dtype: DType, count: int) -> Array:
        """Return the numbers of a storage."""
        found = self.bytes_of(f"data/{key}")
        if len(found) != count * dtype.itemsize:
            raise ValueError(f"storage {key} has {len(found)} bytes for {count} numbers")
        if dtype == BOOL and (np.frombuffer(found, np.uint8) > 1).any():
            raise ValueError(f"storage {key} holds bools that are neither 0 nor 1")
        flat = np.frombuffer(found, dtype)
        return flat if self._mapped else flat.copy()


class _Unpickler:
    """A stack, a memo, and what each opcode does with them.

    unread  how many objects of which class were left out
    """

    def __init__(self, archive: _Archive) -> None:
        self._archive = archive
        self._storages: dict[str, Array] = {}
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self.unread: Counter[str] = Counter()

    def load(self) -> Any:
        pickle = bytes(self._archive.bytes_of("data.pkl"))
        for count, (opcode, argument, _) in enumerate(pickletools.genops(pickle)):
            name = opcode.name
            if name == "STOP" or count > MOST_OPCODES:
                break
            if name in VALUES:
                self._stack.append(argument)
            elif name in OPCODES:
                OPCODES[name](self, argument)
            else:
                raise ValueError(f"its pickle has the opcode {name}, which no tensors need")
        if name != "STOP" or len(self._stack) != 1:
            raise ValueError("its pickle is too long, or leaves more than one object")
        return self._stack[0]

    def _take(self, count: int) -> list[Any]:
        """Take the last objects from the stack, but none before a mark."""
        start = len(self._stack) - count
        if start < (self._marks[-1] if self._marks else 0):
            raise ValueError("its pickle takes more than it has made")
        items = self._stack[start:]
        del self._stack[start:]
        return items

    def _marked(self) -> list[Any]:
        """Take what is above the last mark, and the mark."""
        items = self._take(len(self._stack) - self._marks[-1])
        self._marks.pop()
        return items

    def _read(self, value: Any) -> bool:
        """Return whether an object is one that is read; count it if it is not."""
        if isinstance(value, Unread | _Arguments):
            self.unread[value.name] += 1
            return False
        return True

    def _put(self, index: int | None) -> None:
        self._memo[len(self._memo) if index is None else index] = self._stack[-1]

    def _global(self, argument: str | None) -> None:
        words = self._take(2) if argument is None else argument.split(" ")
        self._stack.append(Unread(".".join(map(str, words))))

    def _tuple(self, items: Sequence[Any]) -> None:
        unread = any(isinstance(x, Unread | _Arguments) for x in items)
        self._stack.append((_Arguments if unread else tuple)(items))

    def _append(self, items: Sequence[Any]) -> None:
        into = self._stack[-1]
        if not isinstance(into, list | Unread):
            raise ValueError("its pickle appends to something that is no list")
        if isinstance(into, list):
            into += [x if self._read(x) else None for x in items]

    def _set(self, items: Sequence[Any]) -> None:
        into = self._stack[-1]
        if not isinstance(into, dict | Unread) or len(items) % 2:
            raise ValueError("its pickle sets items of something that is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | None):  # a tuple may be nested deeply
                raise ValueError("its pickle has keys that are neither strings nor numbers")
            if isinstance(into, dict) and self._read(value):
                into[key] = value

    def _reduce(self) -> None:
        function, arguments = self._take(2)
        if not isinstance(function, Unread) or not isinstance(arguments, tuple):
            raise ValueError("its pickle calls something that is no function")
        rebuild = REBUILT.get(function.name)
        self._stack.append(rebuild(*arguments) if rebuild else function)

    def _build(self) -> None:
        self._take(1)
        if not isinstance(self._stack[-1], Unread | dict):  # an OrderedDict has attributes
            raise ValueError("its pickle gives attributes to something that has none")

    def _storage(self) -> None:
        """Put a storage in the place of what names it."""
        ((kind, storage, key, _, count),) = self._take(1)
        if kind != "storage" or not isinstance(key, str) or storage.name not in STORAGES:
            raise ValueError(f"it has tensors in {getattr(storage, 'name', storage)}")
        if key not in self._storages:
            dtype = STORAGES[storage.name]
            self._storages[key] = self._archive.storage(key, dtype, count)
        self._stack.append(self._storages[key])


def _tensor(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> Array:
    """Return a tensor as a view of its storage; ValueError if it reaches beyond it."""
    if not isinstance(storage, np.ndarray) or len(size) != len(stride):
        raise ValueError("it has a tensor without a storage")
    if min(offset, *size, *stride, 0) < 0:
        raise ValueError("it has a tensor with negative sizes")
    if 0 in size:
        return np.empty(size, storage.dtype)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if last >= storage.size:
        raise ValueError("it has a tensor that reaches beyond its storage")
    steps = [step * storage.itemsize for step in stride]
    repeats = any(n > 1 and not step for n, step in zip(size, stride, strict=True))
    view = np.lib.stride_tricks.as_strided
    return view(storage[offset:], size, steps, writeable=not repeats)


def _typed_tensor(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> Array:
    """Return a tensor whose storage has bytes; `rest` names its dtype."""
    dtype = as_dtype(rest[2].name.removeprefix("torch."))
    return _tensor(storage.view(dtype), offset, size, stride)


REBUILT: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": dict,
    "torch.Size": lambda sizes: sizes,
    "torch._utils._rebuild_parameter": lambda data, *rest: data,
    "torch._utils._rebuild_parameter_with_state": lambda data, *rest: data,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch.device": lambda *words: ":".join(map(str, words)),
}
VALUES = {
    *("BINBYTES", "BINFLOAT", "BININT", "BININT1", "BININT2", "BINUNICODE", "LONG1", "NONE"),
    *("SHORT_BINBYTES", "SHORT_BINUNICODE"),
}
OPCODES: dict[str, Callable[[_Unpickler, Any], None]] = {
    "APPEND": lambda u, _: u._append(u._take(1)),
    "APPENDS": lambda u, _: u._append(u._marked()),
    "BINGET": lambda u, index: u._stack.append(u._memo[index]),
    "BINPERSID": lambda u, _: u._storage(),
    "BINPUT": lambda u, index: u._put(index),
    "BUILD": lambda u, _: u._build(),
    "EMPTY_DICT": lambda u, _: u._stack.append({}),
    "EMPTY_LIST": lambda u, _: u._stack.append([]),
    "EMPTY_TUPLE": lambda u, _: u._stack.append(()),
    "FRAME": lambda u, _: None,
    "GLOBAL": lambda u, name: u._global(name),
    "LONG_BINGET": lambda u, index: u._stack.append(u._memo[index]),
    "LONG_BINPUT": lambda u, index: u._put(index),
    "MARK": lambda u, _: u._marks.append(len(u._stack)),
    "MEMOIZE": lambda u, _: u._put(None),
    "NEWFALSE": lambda u, _: u._stack.append(False),
    "NEWOBJ": lambda u, _: u._reduce(),
    "NEWTRUE": lambda u, _: u._stack.append(True),
    "PROTO": lambda u, _: None,
    "REDUCE": lambda u, _: u._reduce(),
    "SETITEM": lambda u, _: u._set(u._take(2)),
    "SETITEMS": lambda u, _: u._set(u._marked()),
    "STACK_GLOBAL": lambda u, _: u._global(None),
    "TUPLE": lambda u, _: u._tuple(u._marked()),
    "TUPLE1": lambda u, _: u._tuple(u._take(1)),
    "TUPLE2": lambda u, _: u._tuple(u._take(2)),
    "TUPLE3": lambda u, _: u._tuple(u._take(3)),
}
