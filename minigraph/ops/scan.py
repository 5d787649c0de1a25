"""Recurrence over time: a loop as one op, as in `jax.lax.scan`.

The body of the loop is traced once.  Loop-invariant values, such as a transposed weight, are
computed once, outside of the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from minigraph.arguments import Kind, Size, instance_of, short_repr
from minigraph.errors import DTypeError, GraphError, ShapeError
from minigraph.graph import (
    Constant,
    Graph,
    Item,
    Loop,
    Node,
    Spec,
    VectorJacobian,
    as_node,
    builder,
    constant,
    dependents,
    placeholders,
    toposort,
)
from minigraph.ops.arithmetic import Add
from minigraph.ops.elementwise import kind
from minigraph.ops.joining import stack
from minigraph.ops.matmul import Matmul
from minigraph.ops.random import Random
from minigraph.ops.reduction import Sum
from minigraph.ops.shape import PermuteDims, Reshape, broadcast_to, permute_dims, reshape


class Scan(Loop, eq=False):
    """A loop that can be differentiated, and unrolled."""

    def forward(self, *xs: Any) -> Any:
        return self.loop(self.graph, *xs)

    def expand(self, *xs: Node) -> tuple[Node, ...]:
        """Unroll the loop."""

        def body(*args: Node) -> tuple[Node, ...]:
            return self.graph.replace_nodes(dict(zip(self.graph.inputs, args, strict=True))).outputs

        carry, results = self.run(body, xs)
        return (*carry, *(stack(y) if y else _zeros(self.stacked(s)) for s, y in results))

    # ------------------------------------------------------------ the gradient

    def differentiate(
        self, vjp: VectorJacobian, dys: Sequence[Node | None], xs: Sequence[Node]
    ) -> list[Node | None]:
        """Return the gradients for the inputs `xs` from those of the results (None: not read).

        A loop in the opposite direction computes them.  The values of the body that it reads become
        further results of this loop, which `minigraph.passes.rewrite.loops` merges with the
        original.  If the gradient of a constant is a sum over steps of matrix products or sums, one
        product or sum after the loop computes it.
        """
        return _Gradient(self, vjp, dys, xs).results()


def _zeros(spec: Spec) -> Node:
    return broadcast_to(constant(0, spec.dtype), spec.shape)


def _is_float(node: Node) -> bool:
    return kind(node.dtype) == "f"


def close(
    outputs: Sequence[Node],
    carries: Sequence[Node],
    slices: Sequence[Node],
    length: int,
    reverse: bool,
) -> tuple[Scan, tuple[Node, ...]]:
    """Return the loop whose body computes `outputs` from placeholders, and what it captures."""
    inner = dependents(outputs, (*carries, *slices))
    numbers: set[Node] = set()  # computed from numbers alone, so cheap enough for the body
    captured: dict[Node, None] = {}

    def capture(nodes: Sequence[Node]) -> None:
        captured.update(dict.fromkeys(x for x in nodes if x not in inner and x not in numbers))

    for node in toposort(outputs):
        if isinstance(node.op, Constant):
            is_number = node.size == 1
        else:
            is_number = bool(node.inputs) and numbers.issuperset(node.inputs)
        if is_number:
            numbers.add(node)
        if node in inner:
            capture(node.inputs)
    capture(outputs)
    operands = (*carries, *slices, *captured)
    inputs = placeholders([x.spec for x in operands])
    replacements = dict(zip(operands, inputs, strict=True))
    graph = Graph(inputs, Graph((), tuple(outputs)).replace_nodes(replacements).outputs)
    return Scan(graph, len(carries), len(slices), length, reverse), tuple(captured)


class _Gradient:
    """The gradient of one loop: see `Scan.differentiate`."""

    def __init__(
        self, op: Scan, vjp: VectorJacobian, dys: Sequence[Node | None], xs: Sequence[Node]
    ) -> None:
        self.op = op
        self.xs = xs
        self.dys = dys
        graph, carried, last = op.graph, op.carried, op.carried + op.scanned
        self.graph = graph
        self.outer = dict(zip(graph.inputs, xs, strict=True))
        self.slices, self.constants = graph.inputs[carried:last], graph.inputs[last:]
        # The carries and results for which the body gets gradients, and placeholders of these.
        self.carries = [i for i in range(carried) if _is_float(graph.inputs[i])]
        self.stacked = [
            i
            for i in range(carried, len(dys))
            if dys[i] is not None and _is_float(graph.outputs[i])
        ]
        seeded = [graph.outputs[i] for i in (*self.carries, *self.stacked)]
        self.seeds = placeholders([y.spec for y in seeded])
        wrt = [x for x in graph.inputs if _is_float(x)]
        self.grads = dict(zip(wrt, vjp(seeded, self.seeds, wrt), strict=True))
        self.reached = set(toposort(seeded))
        # The constants whose gradients are summed after the loop, or inside it.
        constants = [k for k in self.constants if k in self.grads and k in self.reached]
        self.summed_after = [k for k in constants if summands(self.grads[k]) is not None]
        self.summed_inside = [k for k in constants if summands(self.grads[k]) is None]

    def results(self) -> list[Node | None]:
        sums = placeholders([k.spec for k in self.summed_inside])
        carries = (*self.seeds[: len(self.carries)], *sums)
        new_carries = [self.grads[self.graph.inputs[i]] for i in self.carries]
        new_carries += [x + self.grads[k] for x, k in zip(sums, self.summed_inside, strict=True)]
        slices = {x: self.grads[x] for x in self.slices if x in self.grads and x in self.reached}
        operands = [x for k in self.summed_after for x in factors(self.grads[k])]
        values = dict.fromkeys([*slices.values(), *operands])
        saved = self._saved([*new_carries, *values])
        stacked = [x for x in values if x not in saved]
        saved_stacks = self._stacks(saved)
        results = self._loop(carries, new_carries, stacked, saved_stacks)
        stacks = {**saved_stacks, **dict(zip(stacked, results[len(carries) :], strict=True))}
        dxs = {x: stacks[dx] for x, dx in slices.items()}
        inputs = [self.graph.inputs[i] for i in self.carries]
        dxs.update(zip((*inputs, *self.summed_inside), results[: len(carries)], strict=True))
        for k in self.summed_after:
            is_transposed = isinstance(self.outer[k].op, PermuteDims)
            dxs[k] = sum_over_steps(self.grads[k], stacks, is_transposed)
        return [dxs.get(x) for x in self.graph.inputs]

    def _saved(self, outputs: Sequence[Node]) -> dict[Node, None]:
        """Return the values of the body that the gradient reads, except constants and views."""
        last = self.op.carried + self.op.scanned
        varies = dependents(self.graph.outputs, self.graph.inputs[:last])
        saved: dict[Node, None] = {}
        visited: set[Node] = set()
        pending = [*reversed(outputs)]
        while pending:
            node = pending.pop()
            if node in visited:
                continue
            visited.add(node)
            is_item = isinstance(node.op, Item) and node.inputs[0] in varies
            if is_item or (node in varies and not (node.op.is_view or node.is_bundle)):
                saved[node] = None
            else:
                pending.extend(reversed(node.inputs))
        return saved

    def _stacks(self, saved: Iterable[Node]) -> dict[Node, Node]:
        """Return the stacks of values of the body, which become results of the loop."""
        op, graph = self.op, self.graph
        slices = {x: self.outer[x] for x in self.slices}
        results = dict.fromkeys(graph.outputs[op.carried :])
        results.update(dict.fromkeys(x for x in saved if x not in slices))
        outputs = (*graph.outputs[: op.carried], *results)
        extended = dataclasses.replace(op, graph=Graph(graph.inputs, outputs))
        stacks = dict(zip(results, extended.results(*self.xs)[op.carried :], strict=True))
        return {x: slices[x] if x in slices else stacks[x] for x in saved}

    def _loop(
        self,
        carries: Sequence[Node],
        new_carries: Sequence[Node],
        stacked: Sequence[Node],
        saved: Mapping[Node, Node],
    ) -> tuple[Node, ...]:
        """Return the results of the loop in the opposite direction, which reads stacks `saved`."""
        op = self.op
        slices = placeholders([x.spec for x in saved])
        constants = {k: self.outer[k] for k in self.constants}
        replacements = {**constants, **dict(zip(saved, slices, strict=True))}
        outputs = Graph((), (*new_carries, *stacked)).replace_nodes(replacements).outputs
        seeds = self.seeds[len(self.carries) :]
        loop, captured = close(outputs, carries, (*seeds, *slices), op.length, not op.reverse)
        carry_dys = [(self.dys[i], self.graph.outputs[i].spec) for i in self.carries]
        first = [_zeros(spec) if dy is None else dy for dy, spec in carry_dys]
        first += [_zeros(k.spec) for k in self.summed_inside]
        dys = [dy for i in self.stacked if (dy := self.dys[i]) is not None]
        return loop.results(*first, *dys, *saved.values(), *captured)


# ---------------------------------------------------------------- sums over steps, after the loop


def summands(dk: Node) -> dict[Node, None] | None:
    """Return the matrix products and sums that `dk` is the sum of; None if it has other summands.

    Stacks of their operands then give the sum of `dk` over all steps.
    """
    terms: dict[Node, None] = {}
    visited: set[Node] = set()
    pending = [dk]
    while pending:
        node = pending.pop()
        if node in visited:
            continue
        visited.add(node)
        broadcasts = isinstance(node.op, Add) and any(x.shape != node.shape for x in node.inputs)
        if isinstance(node.op, Add | Reshape | PermuteDims) and not broadcasts:
            pending.extend(reversed(node.inputs))
        elif isinstance(node.op, Sum) or (
            isinstance(node.op, Matmul) and [x.ndim for x in node.inputs] == [2, 2]
        ):
            terms[node] = None
        else:
            return None
    return terms


def factors(dk: Node) -> list[Node]:
    """Return the nodes of the body whose stacks the sum over all steps needs."""
    operands: list[Node] = []
    for term in summands(dk) or ():
        operands += term.inputs if isinstance(term.op, Sum) else map(_untransposed, term.inputs)
    return operands


def _untransposed(x: Node) -> Node:
    while isinstance(x.op, PermuteDims):
        x = x.inputs[0]
    return x


def sum_over_steps(dk: Node, stacks: Mapping[Node, Node], is_transposed: bool) -> Node:
    """Return the sum of `dk` over all steps: one product for matrix products, one sum for sums.

    is_transposed  whether `dk` is the gradient of a transposed constant; then products are
                   transposed, too, as in `Matmul`
    """
    totals: dict[Node, Node] = {}
    for term in summands(dk) or ():
        if isinstance(term.op, Sum):
            stacked = stacks[term.inputs[0]]
            total = reshape(Sum((0, *(a + 1 for a in term.op.axes)))(stacked), term.shape)
        else:
            left, right = (_join_steps(x, 1 - i, stacks) for i, x in enumerate(term.inputs))
            total = Matmul()(right.T, left.T).T if is_transposed else Matmul()(left, right)
        totals[term] = total
    return Graph((), (dk,)).replace_nodes(totals).outputs[0]


def _join_steps(x: Node, axis: int, stacks: Mapping[Node, Node]) -> Node:
    """Return the matrices x of all steps as one, side by side along `axis`."""
    if isinstance(x.op, PermuteDims):
        return permute_dims(_join_steps(x.inputs[0], 1 - axis, stacks), (1, 0))
    stacked = stacks[x]
    steps, rows, columns = stacked.shape
    if axis == 0:
        return reshape(stacked, (steps * rows, columns))
    return reshape(permute_dims(stacked, (1, 0, 2)), (rows, steps * columns))


# ---------------------------------------------------------------- the builder


def _flatten(tree: Any) -> tuple[Any, ...]:
    return tuple(tree) if isinstance(tree, tuple | list) else () if tree is None else (tree,)


def _unflatten(tree: Any, leaves: Sequence[Node]) -> Any:
    """Return `leaves` in the form of `tree`."""
    if hasattr(tree, "_fields"):  # a named tuple
        return type(tree)(*leaves)
    if isinstance(tree, tuple | list):
        return type(tree)(leaves)
    return None if tree is None else leaves[0]


def _parse_tree(value: Any) -> Any:
    return _unflatten(value, [as_node(x) for x in _flatten(value)])


BODY = instance_of(Callable, "a function (carry, x) -> (carry, y)")
TREE = Kind("an expression, or a tuple or list of them", _parse_tree, DTypeError)


@builder
def scan(
    body: Annotated[Callable[..., Any], BODY],
    carry: Annotated[Any, TREE],
    xs: Annotated[Any, TREE] | None = None,
    length: Size | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Return the last carry, and the results of all steps stacked along axis 0.

    body     takes the carry and a slice x of `xs`, and returns the new carry and a result y; it is
             called once, with expressions, and may read other expressions
    carry    the first step's carry: an expression, or a tuple or list of them; the body keeps their
             shapes and dtypes
    xs       scanned along axis 0: an expression, or a tuple or list of them; None: nothing
    length   number of steps, required if `xs` is None
    reverse  whether to scan from the last slice; results stay in the order of the slices

    The result y is an expression, a tuple or list of them, or None.  The scan is one op with
    gradients of any order, and a native loop on the CPU; on a GPU it is unrolled.  As
    `jax.lax.scan`.

    Raises ShapeError or DTypeError if the carry changes its shape or dtype, ShapeError if arrays
    differ in length, and GraphError for random ops in the body: draw the numbers outside, and scan
    over them.

    >>> import minigraph as mg
    >>> from minigraph import ops
    >>> x = mg.input("x", (4,))
    >>> total, sums = ops.scan(lambda s, v: (s + v, s + v), ops.zeros(()), x)
    >>> mg.comp_graph().compile([x], sums)([1.0, 2.0, 3.0, 4.0])
    array([ 1.,  3.,  6., 10.], dtype=float32)
    """
    first, arrays = _flatten(carry), _flatten(xs)
    steps = _steps(arrays, length)
    carries = placeholders([x.spec for x in first])
    slices = placeholders([Spec(x.shape[1:], x.dtype) for x in arrays])
    (start,) = placeholders([Spec(())])
    returned = body(_unflatten(carry, carries), _unflatten(xs, slices))
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise GraphError(f"the body returns {short_repr(returned)}, not (carry, y)")
    new_carry, ys = map(_parse_tree, returned)
    outputs = (*_flatten(new_carry), *_flatten(ys))
    _check_body(first, _flatten(new_carry), outputs, start)
    if not outputs:
        raise GraphError("the body returns neither a carry nor a result")
    op, captured = close(outputs, carries, slices, steps, reverse)
    results = op.results(*first, *arrays, *captured)
    return _unflatten(carry, results[: len(first)]), _unflatten(ys, results[len(first) :])


def _steps(arrays: Sequence[Node], length: int | None) -> int:
    """Return the number of steps."""
    for x in arrays:
        if not x.ndim:
            raise ShapeError("xs has no axis to scan along")
    lengths = {x.shape[0] for x in arrays} | ({length} if length is not None else set())
    if not lengths:
        raise GraphError("length is None; without xs it takes a number")
    if len(lengths) > 1:
        raise ShapeError(f"the lengths differ: {', '.join(map(str, sorted(lengths)))}")
    return lengths.pop()


def _check_body(
    before: Sequence[Node], after: Sequence[Node], outputs: Sequence[Node], start: Node
) -> None:
    """Raise an error for carries that change, and for a random op that was made after `start`."""
    if len(before) != len(after):
        raise GraphError(f"the body takes {len(before)} carries and returns {len(after)}")
    for x, y in zip(before, after, strict=True):
        error = ShapeError if x.shape != y.shape else DTypeError
        if x.spec != y.spec:
            raise error(f"the body takes a carry {x.spec} and returns {y.spec} (made {y.source})")
    for node in toposort(outputs):
        if isinstance(node.op, Random) and node.order > start.order:
            raise GraphError(
                f"the body draws random numbers (made {node.source}), which would be the same at "
                "every step; draw those of all steps outside, and scan over them"
            )
