"""minigraph: a deep-learning framework whose computation graph optimises itself by level."""

from minigraph import autotune, data, distributed, jit, nn, ops, optim
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
from minigraph.function.compile import comp_graph
from minigraph.graph import Parameter, input
from minigraph.serialization import load, save
from minigraph.version import __version__
