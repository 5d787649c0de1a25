"""A network of one's own: a Python file whose path stands among the models.

The file says what the network is and what it is trained on:

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

from minigraph.bench.networks import Described, Labels
from minigraph.errors import GraphError

SUFFIX = ".py"
OPTIONAL = {"batch": 32, "labels": "examples"}


def is_file(model: str) -> bool:
    """Whether a model is a file, and none of the benchmark's own."""
    return model.endswith(SUFFIX)


def name_of(model: str) -> str:
    """Return the name of a model in results: of a file, that without folder and suffix."""
    return Path(model).stem if is_file(model) else model


@functools.lru_cache
def read(path: str) -> Described:
    """Return the network of a file, which is run once; GraphError if the file lacks something."""
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:  # as if Python ran the file
        sys.path.insert(0, folder)
    try:
        found = OPTIONAL | runpy.run_path(path, run_name=Path(path).stem)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from None

    def part(name: str, fits: Callable[[Any], bool], wanted: str) -> Any:
        if name not in found:
            raise GraphError(f"{path} defines no `{name}`: {wanted}")
        if not fits(found[name]):
            raise GraphError(f"{path}: `{name}` is {wanted}, not {found[name]!r}")
        return found[name]

    kinds = get_args(Labels)
    labels = part("labels", lambda x: x in kinds, f"one of {', '.join(kinds)}")
    axes = ("tokens",) if labels == "tokens" else ("channels", "height", "width")
    shape = part(
        "shape",
        lambda x: isinstance(x, tuple) and len(x) == len(axes) and all(map(_counts, x)),
        f"a tuple of integers: {', '.join(axes)}",
    )
    classes = part("classes", _counts, "the number of classes, an integer")
    batch = part("batch", _counts, "the number of examples in a step, an integer")
    network = part("network", callable, "a function of a library, such as minigraph.nn")
    return Described(name_of(path), network, {}, shape, shape, classes, labels, (batch,) * 4)


def _counts(x: Any) -> bool:
    return type(x) is int and x > 0
