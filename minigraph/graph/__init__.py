"""Expressions: nodes and graphs, their shapes and dtypes, and the values of parameters.

The only ops defined here are structural: leaves, `Item`, `Copy` and the bases of ops with a graph.
"""

from minigraph.errors import NoGradient
from minigraph.graph.graph import Graph, application, check_rewrite, compute, toposort
from minigraph.graph.leaves import (
    Constant,
    Expression,
    FromSizes,
    Input,
    Operand,
    Parameter,
    Tensor,
    Variable,
    as_node,
    assign_all,
    builder,
    constant,
    constant_array,
    from_size,
    from_sizes,
    function_of,
    input,
    namesake,
    values_of,
)
from minigraph.graph.location import Location, here
from minigraph.graph.loop import (
    Composed,
    Expanded,
    GraphOp,
    Loop,
    VectorJacobian,
    dependents,
    nested,
    placeholders,
)
from minigraph.graph.node import (
    Changes,
    Copy,
    Descent,
    Item,
    Node,
    Op,
    bind_functions,
    gradients,
    in_place_of,
    zero_gradient,
)
from minigraph.graph.sizing import with_sizes
from minigraph.graph.spec import (
    ALIGNMENT,
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOATS,
    INTEGERS,
    Array,
    DType,
    DTypeLike,
    IndexRange,
    Shape,
    Sizes,
    Spec,
    aligned_empty,
    as_array,
    as_dtype,
    can_cast,
    cast,
    limits,
    same_kind,
    sizes_around,
)
from minigraph.graph.state import (
    Claim,
    Replica,
    State,
    outdated_on,
    run_exclusively,
)
from minigraph.symbolic import SymbolicSize, UndecidedSize, is_symbolic
