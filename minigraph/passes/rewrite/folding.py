"""Computing once, before the first call, what no input has a part in."""

from __future__ import annotations

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import Constant, Item, Node, Op, constant
from minigraph.passes.rewrite.rule import rule_on, rules_in

LIMIT = 1 << 16  # elements that a result may have, even if its operands have fewer


@rule_on(Op)
def constant_folded(node: Node) -> Node | None:
    """Compute what depends on constants only; of a bundle, the result that is read.

    A result much larger than its operands costs more to keep than to compute, and a view costs
    nothing to compute.  An op that refuses its operands is left to do so at the call.
    """
    source = node.inputs[0] if isinstance(node.op, Item) else node
    operands = [x.op.value for x in source.inputs if isinstance(x.op, Constant)]
    if not operands or len(operands) < len(source.inputs) or node.is_bundle:
        return None
    given = sum(x.size for x in operands)
    limit = given if node.op.is_view else max(given, LIMIT)
    if sum(spec.size for spec in source.specs) > limit:
        return None
    try:
        with np.errstate(all="ignore"):
            result = source.op.forward(*operands)
    except GraphError:
        return None
    return constant(result[node.op.index] if isinstance(node.op, Item) else result, node.dtype)


RULES = rules_in(globals())
