"""Recurrence over time: a loop as one op, as `jax.lax.scan`.

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

        def body(*given: Node) -> tuple[Node, ...]:
            return _substitute(self.graph, dict(zip(self.graph.inputs, given, strict=True)))

        carry, results = self.run(body, xs)
        return (*carry, *(stack(y) if y else _zeros(self.stacked(s)) for s, y in results))

    # ------------------------------------------------------------ the gradient

    def differentiate(
        self, vjp: VectorJacobian, dys: Sequence[Node | None], xs: Sequence[Node]
    ) -> list[Node | None]:
        """Return the gradients for the inputs `xs`, given those of the results (None: not read).

        A loop in the opposite direction computes them.  The body's values that it reads become
        further results of this loop, which `minigraph.passes.rewrite.loops` merges with the
        original.  If the gradient of a constant is a sum over steps of matrix products or sums, one
        product or sum after the loop computes it.
        """
        return _Gradient(self, vjp, dys, xs).results()


def _zeros(spec: Spec) -> Node:
    return broadcast_to(constant(0, spec.dtype), spec.shape)


def _is_float(node: Node) -> bool:
    return kind(node.dtype) == "f"


def _substitute(graph: Graph, given: Mapping[Node, Node]) -> tuple[Node, ...]:
    """Return the outputs of a graph, some of whose nodes are replaced."""
    reads: dict[Node, tuple[Node, ...]] = dict.fromkeys(given, ())
    return graph.map(
        lambda node, inputs: given[node] if node in given else node.replace(inputs), reads
    ).outputs


def close(
    outputs: Sequence[Node],
    carries: Sequence[Node],
    slices: Sequence[Node],
    length: int,
    reverse: bool,
) -> tuple[Scan, tuple[Node, ...]]:
    """Return the loop whose body computes `outputs` from placeholders, and its outer inputs."""
    inner = dependents(outputs, (*carries, *slices))
    numbers: set[Node] = set()  # computed from numbers alone: cheap, so they stay inside
    captured: dict[Node, None] = {}

    def capture(nodes: Sequence[Node]) -> None:
        captured.update(dict.fromkeys(x for x in nodes if x not in inner and x not in numbers))

    for node in toposort(outputs):
        if isinstance(node.op, Constant):
            number = node.size == 1
        else:
            number = bool(node.inputs) and numbers.issuperset(node.inputs)
        if number:
            numbers.add(node)
        if node in inner:
            capture(node.inputs)
    capture(outputs)
    outside = tuple(captured)
    inside = placeholders([x.spec for x in (*carries, *slices, *outside)])
    given = dict(zip((*carries, *slices, *outside), inside, strict=True))
    graph = Graph(inside, _substitute(Graph((), tuple(outputs)), given))
    return Scan(graph, len(carries), len(slices), length, reverse), outside


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
        # Of which carries and results the body gets gradients, and stand-ins for those.
        self.carries = [i for i in range(carried) if _is_float(graph.inputs[i])]
        self.read = [
            i
            for i in range(carried, len(dys))
            if dys[i] is not None and _is_float(graph.outputs[i])
        ]
        seeded = [graph.outputs[i] for i in (*self.carries, *self.read)]
        self.seeds = placeholders([y.spec for y in seeded])
        wrt = [x for x in graph.inputs if _is_float(x)]
        self.grads = dict(zip(wrt, vjp(seeded, self.seeds, wrt), strict=True))
        self.reached = set(toposort(seeded))
        # Gradients of constants that are computed after the loop, and those added up in it.
        summed = [k for k in self.constants if k in self.grads and k in self.reached]
        self.late = [k for k in summed if summands(self.grads[k]) is not None]
        self.early = [k for k in summed if summands(self.grads[k]) is None]

    def results(self) -> list[Node | None]:
        sums = placeholders([k.spec for k in self.early])
        carries = (*self.seeds[: len(self.carries)], *sums)
        ends = [self.grads[self.graph.inputs[i]] for i in self.carries]
        ends += [total + self.grads[k] for total, k in zip(sums, self.early, strict=True)]
        stacked = {x: self.grads[x] for x in self.slices if x in self.grads and x in self.reached}
        made = dict.fromkeys(stacked.values())
        made.update(dict.fromkeys(x for k in self.late for x in factors(self.grads[k])))
        saved = self._saved([*ends, *made])
        for x in [x for x in made if x in saved]:  # it is there already
            del made[x]
        known = self._values(saved)
        given = {x: known[x] for x in saved}
        results = self._loop(carries, ends, list(made), given)
        values = {**given, **dict(zip(made, results[len(carries) :], strict=True))}
        last = results[: len(carries)]
        found: dict[Node, Node] = {x: values[dx] for x, dx in stacked.items()}
        inputs = [self.graph.inputs[i] for i in self.carries]
        found.update(zip((*inputs, *self.early), last, strict=True))
        for k in self.late:
            is_transposed = isinstance(self.outer[k].op, PermuteDims)
            found[k] = sum_over_steps(self.grads[k], values, is_transposed)
        return [found.get(x) for x in self.graph.inputs]

    def _saved(self, outputs: Sequence[Node]) -> dict[Node, None]:
        """Return the values of the body that the gradient reads, but for constants.

        A view of a value is made again.
        """
        last = self.op.carried + self.op.scanned
        varies = dependents(self.graph.outputs, self.graph.inputs[:last])
        saved: dict[Node, None] = {}
        seen: set[Node] = set()
        waiting = [*reversed(outputs)]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            item = isinstance(node.op, Item) and node.inputs[0] in varies
            if item or (node in varies and not (node.op.is_view or node.is_bundle)):
                saved[node] = None
            else:
                waiting.extend(reversed(node.inputs))
        return saved

    def _values(self, saved: Iterable[Node]) -> dict[Node, Node]:
        """Return the stacks of values of the body, further results of the loop."""
        op, graph = self.op, self.graph
        known = {x: self.outer[x] for x in self.slices}
        results = dict.fromkeys(graph.outputs[op.carried :])
        results.update(dict.fromkeys(x for x in saved if x not in known))
        outputs = (*graph.outputs[: op.carried], *results)
        extended = dataclasses.replace(op, graph=Graph(graph.inputs, outputs))
        stacks = extended.results(*self.xs)[op.carried :]
        return {**dict(zip(results, stacks, strict=True)), **known}

    def _loop(
        self,
        carries: Sequence[Node],
        ends: Sequence[Node],
        made: Sequence[Node],
        saved: Mapping[Node, Node],
    ) -> tuple[Node, ...]:
        """Return the results of the loop that goes the other way."""
        op = self.op
        slices = placeholders([x.spec for x in saved])
        constants = {k: self.outer[k] for k in self.constants}
        given = {**constants, **dict(zip(saved, slices, strict=True))}
        outputs = _substitute(Graph((), (*ends, *made)), given)
        read = self.seeds[len(self.carries) :]
        loop, outside = close(outputs, carries, (*read, *slices), op.length, not op.reverse)
        last = [(self.dys[i], self.graph.outputs[i].spec) for i in self.carries]
        starts = [_zeros(spec) if dy is None else dy for dy, spec in last]
        starts += [_zeros(k.spec) for k in self.early]
        stacks = [dy for i in self.read if (dy := self.dys[i]) is not None]
        return loop.results(*starts, *stacks, *saved.values(), *outside)


# ---------------------------------------------------------------- sums over steps, after the loop


def summands(dk: Node) -> dict[Node, None] | None:
    """Return the matrix products and sums that `dk` is the sum of; None if it is another node.

    Stacks of their operands then give the sum of `dk` over all steps.
    """
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    waiting = [dk]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        broadcasts = isinstance(node.op, Add) and any(x.shape != node.shape for x in node.inputs)
        if isinstance(node.op, Add | Reshape | PermuteDims) and not broadcasts:
            waiting.extend(reversed(node.inputs))
        elif isinstance(node.op, Sum) or (
            isinstance(node.op, Matmul) and [x.ndim for x in node.inputs] == [2, 2]
        ):
            found[node] = None
        else:
            return None
    return found


def factors(dk: Node) -> list[Node]:
    """Return the nodes of the body whose stacks the sum over all steps needs."""
    operands: list[Node] = []
    for part in summands(dk) or ():
        operands += part.inputs if isinstance(part.op, Sum) else map(_untransposed, part.inputs)
    return operands


def _untransposed(x: Node) -> Node:
    while isinstance(x.op, PermuteDims):
        x = x.inputs[0]
    return x


def sum_over_steps(dk: Node, stacks: Mapping[Node, Node], is_transposed: bool) -> Node:
    """Return the sum of `dk` over all steps: of matrix products one product, of sums one sum.

    is_transposed  whether `dk` is the gradient of a transposed constant; then products are
                   transposed, too, as in `Matmul`
    """
    totals: dict[Node, Node] = {}
    for part in summands(dk) or ():
        if isinstance(part.op, Sum):
            whole = stacks[part.inputs[0]]
            total = reshape(Sum((0, *(a + 1 for a in part.op.axes)))(whole), part.shape)
        else:
            left, right = (_join_steps(x, 1 - i, stacks) for i, x in enumerate(part.inputs))
            total = Matmul()(right.T, left.T).T if is_transposed else Matmul()(left, right)
        totals[part] = total
    return _substitute(Graph((), (dk,)), totals)[0]


def _join_steps(x: Node, axis: int, stacks: Mapping[Node, Node]) -> Node:
    """Return the matrices x of all steps as one, side by side along `axis`."""
    if isinstance(x.op, PermuteDims):
        return permute_dims(_join_steps(x.inputs[0], 1 - axis, stacks), (1, 0))
    whole = stacks[x]
    steps, rows, columns = whole.shape
    if axis == 0:
        return reshape(whole, (steps * rows, columns))
    return reshape(permute_dims(whole, (1, 0, 2)), (rows, steps * columns))


# ---------------------------------------------------------------- building one


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
    made = body(_unflatten(carry, carries), _unflatten(xs, slices))
    if not isinstance(made, tuple) or len(made) != 2:
        raise GraphError(f"the body returns {short_repr(made)}; it returns (carry, y)")
    ends, ys = _parse_tree(made[0]), _parse_tree(made[1])
    outputs = (*_flatten(ends), *_flatten(ys))
    _check_body(first, _flatten(ends), outputs, start)
    if not outputs:
        raise GraphError("the body returns neither a carry nor a result")
    op, outside = close(outputs, carries, slices, steps, reverse)
    results = op.results(*first, *arrays, *outside)
    return _unflatten(carry, results[: len(first)]), _unflatten(ys, results[len(first) :])


def _steps(arrays: Sequence[Node], length: int | None) -> int:
    """Return the number of steps."""
    for x in arrays:
        if not x.ndim:
            raise ShapeError("xs has no axis to scan along")
    lengths = {x.shape[0] for x in arrays} | ({length} if length is not None else set())
    if not lengths:
        raise GraphError("length is None; it takes a number where there is nothing to scan")
    if len(lengths) > 1:
        raise ShapeError(f"the lengths differ: {', '.join(map(str, sorted(lengths)))}")
    return lengths.pop()


def _check_body(
    before: Sequence[Node], after: Sequence[Node], outputs: Sequence[Node], start: Node
) -> None:
    """Raise an error for carries that change, and for a random op that was made since `start`."""
    if len(before) != len(after):
        raise GraphError(f"the body makes {len(after)} carries of {len(before)}")
    for x, y in zip(before, after, strict=True):
        error = ShapeError if x.shape != y.shape else DTypeError
        if x.spec != y.spec:
            raise error(f"the body makes the carry {y.spec} (made {y.source}) of {x.spec}")
    for node in toposort(outputs):
        if isinstance(node.op, Random) and node.order > start.order:
            raise GraphError(
                f"the body draws random numbers (made {node.source}), which would be the same at "
                "every step; draw those of all steps outside, and scan over them"
            )
