"""minigraph: a deep-learning framework whose computation graph optimises itself by level."""

import importlib.util
from typing import TYPE_CHECKING

from minigraph import autotune, distributed, errors, jit, ops
from minigraph.autodiff import grad
from minigraph.errors import (
    CacheError,
    CompileError,
    DeviceError,
    DTypeError,
    GraphError,
    MinigraphWarning,
    OptionError,
    ShapeError,
)
from minigraph.graph import Parameter, input
from minigraph.options import log_level
from minigraph.platform.messages import start_log
from minigraph.version import __version__

start_log(log_level())

__all__ = [
    "CacheError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "GraphError",
    "MinigraphWarning",
    "OptionError",
    "Parameter",
    "ShapeError",
    "__version__",
    "autotune",
    "comp_graph",
    "data",
    "distributed",
    "grad",
    "input",
    "jit",
    "load",
    "load_graph",
    "load_matching",
    "nn",
    "onnx",
    "ops",
    "optim",
    "save",
    "save_graph",
]


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from minigraph import data, nn, onnx, optim
    from minigraph.graph_compiler import comp_graph
    from minigraph.graph_file import load_graph, save_graph
    from minigraph.serialization import load, load_matching, save
else:  # a program that uses none of these does not wait for their import
    LATER = {
        **dict.fromkeys(("load_graph", "save_graph"), "graph_file"),
        **dict.fromkeys(("load", "load_matching", "save"), "serialization"),
        "comp_graph": "graph_compiler",
    }

    def __getattr__(name: str) -> object:
        if name in ("data", "nn", "onnx", "optim"):
            return importlib.import_module(f"minigraph.{name}")
        if name in LATER:
            value = getattr(importlib.import_module(f"minigraph.{LATER[name]}"), name)
            return globals().setdefault(name, value)
        if importlib.util.find_spec(f"minigraph.{name}"):  # `from minigraph import` imports it then
            raise AttributeError(f"minigraph.{name} is not imported")
        nn, optim = (importlib.import_module(f"minigraph.{part}") for part in ("nn", "optim"))
        return errors.module_getattr(__name__, "package", ops, nn, optim)(name)
