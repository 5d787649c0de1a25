"""Save and load named arrays, and assign them to parameters.

Files are safetensors, which have shapes, dtypes and bytes, so nothing is unpickled; their metadata
has the tree of nested dicts as JSON.  Files of `torch.save` can be read, too, without running code.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec.json import Decoder

from minigraph.arguments import FilePath, Kind, checked, mapping
from minigraph.errors import DTypeError, GraphError, ShapeError, warn_once
from minigraph.graph import BFLOAT16, Array, Node, Parameter, as_array, assign_all, values_of
from minigraph.platform.records import decode, encode
from minigraph.serialization import tensor_file, torch_file

# File endings of other formats, with the functions that read them.
OTHER_READERS = {".pt": "torch.load", ".pth": "torch.load", ".npy": "np.load", ".npz": "np.load"}
PICKLE_PROTOCOLS = (b"\x02", b"\x03", b"\x04", b"\x05")
PICKLE_FRAME = b"\x95"  # the opcode before the length of a pickle's frame
ZIP = b"PK\x03\x04"
MAX_LISTED_NAMES = 10  # in an error
OPTIONAL_NAME = "num_batches_tracked"  # files of early versions of PyTorch have none
TREE_KEY = "minigraph.tree"  # in the metadata: dicts, strings and None; [name] means an array
BRANCHES: Decoder[Mapping[str, Any]] = Decoder(dict[str, Any])


class Incompatible(NamedTuple):
    """The names that a state lacks, and its names that no parameter has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


@checked
def save(path: FilePath, state: Any) -> None:
    """Write a module's or an optimizer's state, or a mapping of names to arrays, to `path`.

    Values are NumPy arrays, torch tensors, numbers, and parameters, all as of one point in time:
    steps in other threads come before or after.  They may also be strings, None, modules,
    optimizers, and mappings of all these; `load` returns dicts of the same names.  The file is
    replaced atomically: an earlier one stays until the new one is on disk.  Raises DTypeError for a
    value that is not an array, and GraphError for a file that cannot be written.  Warns of a name
    with an ending of torch's or NumPy's files.

    >>> mg.save("state.safetensors", {"net": nn.Linear(2, 1), "epoch": 3, "note": None})
    >>> state = mg.load("state.safetensors")
    >>> sorted(state["net"]), state["epoch"], state["note"]
    (['bias', 'weight'], array(3), None)
    """
    if reader := OTHER_READERS.get(os.path.splitext(path)[1].lower()):
        warn_once(
            f"save: {path} will be a safetensors file, which mg.load reads and {reader} does not; "
            "call it .safetensors",
            cause=f"save: a file of {reader}",
        )
    leaves: dict[str, Any] = {}
    try:
        tree = _tree(state.state_dict() if hasattr(state, "state_dict") else state, leaves)
        metadata = {} if tree == {name: [name] for name in leaves} else {TREE_KEY: encode(tree)}
    except (RecursionError, UnicodeError) as error:  # such as of a mapping that contains itself
        raise GraphError(f"save: {path} cannot be written ({error})") from None
    arrays = host_arrays("save", leaves)
    contiguous = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    tensor_file.write("save", path, contiguous, metadata)


def _tree(named: Any, leaves: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a mapping as JSON, with [name] for an array; add the arrays to `leaves`."""
    tree: dict[str, Any] = {}
    for key, value in _names("save", named).items():
        value = value.state_dict() if hasattr(value, "state_dict") else value
        if value is None or isinstance(value, str):
            tree[key] = value
        elif isinstance(value, Mapping):
            tree[key] = _tree(value, leaves, f"{prefix}{key}.")
        else:
            name = prefix + key
            while name in leaves:  # such as of {"a": {"b": x}, "a.b": y}
                name += "_"
            leaves[name], tree[key] = value, [name]
    return tree


def _from_tree(tree: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Return the mapping that a tree describes."""
    state: dict[str, Any] = {}
    for key, x in tree.items():
        value = arrays[x[0]] if isinstance(x, list) else x
        state[key] = _from_tree(x, arrays) if isinstance(x, dict) else value
    return state


@checked
def load(path: FilePath, *, mmap: bool = False) -> dict[str, Any]:
    """Return the arrays of a file by name, new and writable.

    path  a safetensors file; an index (`*.index.json`) of several in the same folder; or a file of
          `torch.save` (`*.pt`) since PyTorch 1.6 with a dict of tensors, numbers, strings, lists
          and dicts.  Objects of other classes become `Unread`, with a warning
    mmap  whether the arrays are a private mapping of the file, which reads only arrays in use; the
          file must not change

    Nested mappings are loaded as dicts.  Raises GraphError if the file is missing, damaged, of
    another format, or has arrays of unknown dtypes.

    >>> mg.save("weights.safetensors", {"w": np.zeros(3)})
    >>> mg.load("weights.safetensors")
    {'w': array([0., 0., 0.])}
    """
    return _loaded("load", path, mmap)


def _loaded(what: str, path: FilePath, mapped: bool) -> dict[str, Any]:
    """Return the contents of a file, or of several with an index."""
    if os.fspath(path).lower().endswith(tensor_file.INDEX_SUFFIX):
        arrays: dict[str, Any] = {}
        for file, names in tensor_file.shards(what, path).items():
            contents = _loaded(what, file, mapped)
            if absent := sorted(names - contents.keys()):
                raise GraphError(f"{what}: {path} lists {absent[0]!r} in {file}, which lacks it")
            arrays |= {name: contents[name] for name in contents if name in names}
        return arrays
    data = tensor_file.contents(what, path, mapped)
    if data[:4] == ZIP and b"/data.pkl" in data[30:300]:
        return torch_file.read(path, data, mapped)
    try:
        contents, metadata = tensor_file.parse(what, path, data)
    except GraphError:
        if other := _other_format(path, data):
            raise GraphError(f"{what}: {path} is {other}") from None
        raise
    try:
        return (
            _from_tree(decode(BRANCHES, metadata[TREE_KEY]), contents)
            if TREE_KEY in metadata
            else contents
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        raise GraphError(f"{what}: {path} is damaged: its tree does not fit its arrays") from None


def _other_format(path: str | os.PathLike[str], data: bytes) -> str:
    """Return the format of a file of torch or NumPy, and its reader, in words; "" for others."""
    member = data[30 : 30 + int.from_bytes(data[26:28], "little")]  # the first one of a zip
    if data[:6] == b"\x93NUMPY" or (data[:4] == ZIP and member.endswith(b".npy")):
        return "a file of np.save or np.savez; np.load reads it"
    # A damaged safetensors file may begin like a pickle: its first 8 bytes are a length, whose
    # upper bytes are 0.
    not_a_length = any(data[4:8]) or data[2:3] == PICKLE_FRAME
    if data[:1] == b"\x80" and data[1:2] in PICKLE_PROTOCOLS and not_a_length:
        return (
            "a pickle of torch.save before version 1.6, which could run any program; "
            f"save it again with PyTorch: torch.save(torch.load({str(path)!r}), {str(path)!r})"
        )
    return ""


def restore(
    what: str, parameters: Mapping[str, Parameter], state: Any, strict: bool = True
) -> Incompatible:
    """Assign the arrays of a state to the parameters of the same names: all of them, or none.

    Arrays are cast by NumPy's "same_kind" rule.  Returns the names that only one side has, which
    are errors if `strict`; a BatchNorm's count of batches may be missing, as in torch.  Raises a
    GraphError that lists up to ten mistakes (a ShapeError or DTypeError if all are of that kind),
    and begins with `what`.
    """
    arrays = host_arrays(what, state)
    missing = [n for n in parameters if n not in arrays and n.rpartition(".")[2] != OPTIONAL_NAME]
    unexpected = [name for name in arrays if name not in parameters]
    none_fits = len(unexpected) == len(arrays)
    if strict and none_fits and (prefix := _prefix(unexpected, parameters)):
        raise GraphError(
            f"{what}: all names begin with {prefix!r}; without it they would match: "
            f"{{name.removeprefix({prefix!r}): x for name, x in state.items()}}"
        )
    values, misfits = _compare(parameters, arrays)
    names = {"missing ": missing, "unexpected ": unexpected} if strict else {}
    problems = [(word, ", ", texts) for word, texts in names.items() if texts]
    classes = {GraphError for _ in problems} | {type(error) for error in misfits.values()}
    if misfits:
        problems.append(("", "; ", [*map(str, misfits.values())]))
    if problems:
        limit = MAX_LISTED_NAMES // len(problems)
        text = "; ".join(word + _listed(texts, comma, limit) for word, comma, texts in problems)
        raise (classes.pop() if len(classes) == 1 else GraphError)(f"{what}: {text}")
    assign_all(values)
    return Incompatible(missing, unexpected)


def _compare(
    parameters: Mapping[str, Parameter], arrays: Mapping[str, Array]
) -> tuple[list[tuple[Parameter, Array]], dict[str, GraphError]]:
    """Return parameters with the arrays of their names, and the errors of those that do not fit."""
    values: list[tuple[Parameter, Array]] = []
    misfits: dict[str, GraphError] = {}
    for name, parameter in parameters.items():
        array = arrays.get(name)
        if array is not None and array.shape != parameter.shape:
            text = f"{name} has shape {array.shape}, not {parameter.shape}"
            misfits[name] = ShapeError(text)
        elif array is not None:
            try:
                values.append((parameter, as_array(array, parameter.dtype)))
            except DTypeError as error:
                misfits[name] = DTypeError(f"{name}: {error}")
    return values, misfits


@dataclass(frozen=True)
class Matching:
    """The result of `load_matching`, by name.

    matched     assigned parameters
    missing     parameters that the file lacks
    unexpected  arrays that only the file has
    misfits     parameters that do not fit their arrays, with the reasons
    """

    matched: list[str]
    missing: list[str]
    unexpected: list[str]
    misfits: list[str]

    def __str__(self) -> str:
        counts = {"matched": self.matched, "missing": self.missing, "unexpected": self.unexpected}
        heads = {f"{len(names)} {what}": _listed(names, ", ", 4) for what, names in counts.items()}
        lines = [f"{head}: {names}" if names else head for head, names in heads.items()]
        return "\n".join([*lines, *self.misfits])


def _parameters(value: Any) -> Mapping[str, Parameter]:
    """Return the parameters and buffers of a module, or of a mapping, by name."""
    named = dict(value._state()) if hasattr(value, "_state") else mapping(value)
    if not all(isinstance(k, str) and isinstance(p, Parameter) for k, p in named.items()):
        raise TypeError
    return named


PARAMETERS = Kind("a module, or a mapping of names to parameters", _parameters)


@checked
def load_matching(path: FilePath, module: Annotated[Any, PARAMETERS]) -> Matching:
    """Assign the arrays of a file that have the name, shape and kind of dtype of a parameter.

    path    as for `load`.  The file is mapped, and must not change during the call; without a
            checksum in its metadata, only the assigned arrays are read
    module  a module, or a mapping of names to parameters

    Other parameters keep their values; `print` the result to see which.  Raises GraphError as
    `load` does.

    >>> mg.save("net.safetensors", nn.Linear(2, 1))
    >>> print(mg.load_matching("net.safetensors", nn.Linear(2, 1, bias=False)))
    1 matched: weight
    0 missing
    1 unexpected: bias
    """
    contents = _loaded("load_matching", path, mapped=True)
    arrays = {name: x for name, x in contents.items() if isinstance(x, np.ndarray)}
    values, misfits = _compare(module, arrays)
    assign_all(values)
    return Matching(
        [name for name in module if name in arrays and name not in misfits],
        [name for name in module if name not in arrays],
        [name for name in contents if name not in module],
        [*map(str, misfits.values())],
    )


def _prefix(names: Sequence[str], expected: Container[str]) -> str:
    """Return the common prefix of names, such as "module.", if without it some are expected."""
    parts = "".join(names[:1]).split(".")
    for count in range(1, len(parts)):
        prefix = ".".join(parts[:count]) + "."
        bare = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        if len(bare) == len(names) and any(name in expected for name in bare):
            return prefix
    return ""


def _listed(texts: Sequence[str], separator: str, limit: int) -> str:
    """Return texts in one line: all of them, or the first `limit` and the number of the others."""
    remainder = f" and {len(texts) - limit} more" if len(texts) > limit else ""
    return separator.join(texts[:limit]) + remainder


def _names(what: str, named: Any) -> Mapping[str, Any]:
    if not isinstance(named, Mapping):
        raise GraphError(f"{what} takes a mapping of names to arrays, not {type(named).__name__}")
    for name in named:
        if not isinstance(name, str):
            raise GraphError(f"{what}: names are strings, not {name!r}")
    return named


def host_arrays(what: str, named: Any) -> dict[str, Array]:
    """Return the values of a mapping as NumPy arrays; raise DTypeError for other values."""
    arrays: dict[str, Array] = {}
    items = _names(what, named).items()
    parameters = values_of({name: value for name, value in items if isinstance(value, Parameter)})
    for name, value in items:
        if isinstance(value, Mapping):
            raise DTypeError(f"{what}: {name} is a mapping, not an array: pass it alone")
        try:
            arrays[name] = _host_array(parameters.get(name, value))
        except DTypeError as error:
            raise DTypeError(f"{what}: {name}: {error}") from None
    return arrays


def _host_array(value: Any) -> Array:
    if isinstance(value, Node):
        raise DTypeError("an expression is not an array; compute it, or pass a Parameter")
    if hasattr(value, "detach"):  # a torch tensor: NumPy refuses those that require a gradient
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            return value.float().numpy().astype(BFLOAT16)
    return as_array(value)
