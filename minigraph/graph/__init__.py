"""Expressions: nodes, the graphs that they make, and what is known of their values.

Imports nothing else of minigraph but its errors and `arguments`.  It knows no op but `Item` and
`Copy`.
"""

from minigraph.graph.builder import builder, function_of
from minigraph.graph.dtypes import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOATS,
    INTEGERS,
    Array,
    DType,
    DTypeLike,
    as_array,
    as_dtype,
    can_cast,
)
from minigraph.graph.graph import Graph, compute, toposort
from minigraph.graph.leaves import (
    Constant,
    Expression,
    Input,
    Operand,
    Parameter,
    Variable,
    as_node,
    constant,
    input,
)
from minigraph.graph.location import Location, here, scope
from minigraph.graph.node import Changes, Copy, Item, Node, NoGradient, Op, flat, in_place_of
from minigraph.graph.spec import Shape, Sizes, Spec, aligned_empty, around, as_sizes
from minigraph.graph.state import Claim, State
