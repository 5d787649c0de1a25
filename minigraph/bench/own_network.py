"""A network of a user: a Python file whose path stands among the models.

The file defines the network and its examples:

    shape = (3, 32, 32)  # of an image: channels, height, width
    classes = 10

    def network(nn):
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(14400, classes))

`batch` is optional, the number of examples in a step.  So is `labels`: "pixels" for a class of each
pixel, "tokens" where `shape` is the length of a text, (n,), and the class of a token is the next
token.  `nn` is minigraph's, then torch's, each with the blocks of `minigraph.bench.networks`; a
class inside of the function may inherit from `nn.Module`.  The data are synthetic.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from minigraph.bench.networks import Labels, NetworkSpec
from minigraph.errors import GraphError

SUFFIX, MODEL = ".py", ".onnx"
OPTIONAL = {"batch": 32, "labels": "examples"}
KINDS = get_args(Labels)


def is_file(model: str) -> bool:
    return model.endswith((SUFFIX, MODEL))


def name_of(model: str) -> str:
    """Return the name of a model in results: of a file, that without folder and suffix."""
    return Path(model).stem if is_file(model) else model


@functools.lru_cache
def read(path: str) -> NetworkSpec:
    """Return the network of a file, which is run once; GraphError if the file lacks something."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:  # as if Python ran the file
        sys.path.insert(0, folder)
    try:
        values: dict[str, Any] = OPTIONAL | runpy.run_path(path, run_name=Path(path).stem)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from None
    axes = ("tokens",) if values["labels"] == "tokens" else ("channels", "height", "width")
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "labels": (lambda x: x in KINDS, f"one of {', '.join(KINDS)}"),
        "shape": (
            lambda x: isinstance(x, tuple) and len(x) == len(axes) and all(map(_is_count, x)),
            f"a tuple of integers: {', '.join(axes)}",
        ),
        "classes": (_is_count, "the number of classes, an integer"),
        "batch": (_is_count, "the number of examples in a step, an integer"),
        "network": (callable, "a function of a library, such as minigraph.nn"),
    }
    for name, (fits, wanted) in checks.items():
        if name not in values:
            raise GraphError(f"{path} defines no `{name}`: {wanted}")
        if not fits(values[name]):
            raise GraphError(f"{path}: `{name}` is {wanted}, not {values[name]!r}")
    labels, shape, classes, batch, network = map(values.__getitem__, checks)
    return NetworkSpec(name_of(path), network, shape, shape, classes, labels, (batch,) * 4)


def _is_count(x: Any) -> bool:
    return type(x) is int and x > 0
