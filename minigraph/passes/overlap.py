"""Overlap of collectives with other kernels, and buckets of small reductions.

A collective becomes two nodes: one starts it as soon as its input is computed, the other waits for
its result before the first reader.  Gradients are reduced in buckets, in the order in which the
backward pass computes them, as in PyTorch's DistributedDataParallel: S. Li et al. (2020), PyTorch
distributed: experiences on accelerating data parallel training, https://arxiv.org/abs/2006.15704.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minigraph.graph import Array, Graph, Node, Op, Shape, Spec, in_place_of
from minigraph.ops.collective import AllReduce, Collective
from minigraph.ops.elementwise import astype
from minigraph.ops.joining import concat
from minigraph.ops.shape import reshape
from minigraph.ops.slicing import slice
from minigraph.passes.notes import Notes

MAX_NAMES = 3  # gradients of a bucket that `str` lists


@dataclass(frozen=True, eq=False)
class PendingCollective:
    """A collective that was started.

    names   its gradients, or the line that made it
    nbytes  bytes that each process contributes
    """

    op: Collective
    names: tuple[str, ...]
    nbytes: int

    def __str__(self) -> str:
        hidden = len(self.names) - MAX_NAMES
        suffix = f" and {hidden} more" if hidden > 0 else ""
        names = f" of {', '.join(self.names[:MAX_NAMES])}{suffix}" if self.names else ""
        return f"{self.op.name}{names} ({self.nbytes} bytes)"


class StartCollective(Op):
    """Start a collective; `AwaitCollective` waits for its result."""

    pending: PendingCollective

    def infer(self, x: Spec) -> Spec:
        return self.pending.op.pending_spec(x)

    def forward(self, x: Array) -> Array:
        pending_spec = self.infer(Spec(x.shape, x.dtype))
        y = self.pending.op.forward(x).reshape(-1)
        return np.resize(y, pending_spec.shape)


class AwaitCollective(Op):
    """Wait for a collective: its result is at the beginning of x."""

    pending: PendingCollective
    shape: Shape

    def infer(self, x: Spec) -> Spec:
        return Spec(self.shape, x.dtype)

    def forward(self, x: Array) -> Array:
        return x.reshape(-1)[: math.prod(self.shape)].reshape(self.shape)


def communicates(node: Node) -> bool:
    """Whether a node is a collective, its start or its wait: all processes run it exactly once."""
    return isinstance(node.op, Collective | StartCollective | AwaitCollective)


def pending_collective(node: Node) -> PendingCollective:
    """Return the pending collective of a node that communicates."""
    op = node.op
    if isinstance(op, StartCollective | AwaitCollective):
        return op.pending
    assert isinstance(op, Collective)
    name = (isinstance(op, AllReduce) and op.gradient) or f"the value made {node.source}"
    return PendingCollective(op, (name,), node.inputs[0].spec.nbytes)


def compress_gradients(graph: Graph, notes: Notes, compress: str) -> Graph:
    """Cast gradients to the dtype `compress` for their reduction."""

    def rewrite(node: Node, inputs: tuple[Node, ...]) -> Node:
        gradient = isinstance(node.op, AllReduce) and node.op.gradient
        if not gradient or node.dtype not in (np.float32, np.float64):
            return node.replace(inputs)
        notes.fired[f"gradients in {compress}"] += 1
        return astype(node.op(astype(inputs[0], compress)), node.dtype)

    return graph.map(rewrite)


def overlap_collectives(graph: Graph, notes: Notes, bucket_bytes: int) -> Graph:
    """Start collectives early, wait for them late, and group reductions in buckets.

    bucket_bytes  size of a bucket; a larger gradient is reduced separately
    """
    results: dict[Node, Sequence[Node]] = {}
    for bucket in _buckets(graph, bucket_bytes):
        notes.fired["buckets" if len(bucket) > 1 else "single reductions"] += 1
        last = max((node.inputs[0] for node in bucket), key=lambda x: x.order)
        with in_place_of(last):
            results.update(zip(bucket, [(y,) for y in _reduced(bucket)], strict=True))
    return graph.substitute(results)


def _reduced(bucket: Sequence[Node]) -> Iterator[Node]:
    """Yield the results of the collectives of a bucket, computed by one collective."""
    parts = [pending_collective(node) for node in bucket]
    names = tuple(name for part in parts for name in part.names)
    pending = PendingCollective(parts[0].op, names, sum(part.nbytes for part in parts))
    if len(bucket) == 1:
        (node,) = bucket
        yield AwaitCollective(pending, node.shape)(StartCollective(pending)(node.inputs[0]))
        return
    flat = concat([reshape(node.inputs[0], (node.size,)) for node in bucket])
    y = AwaitCollective(pending, flat.shape)(StartCollective(pending)(flat))
    start = 0
    for node in bucket:
        yield reshape(slice(y, start, start + node.size), node.shape)
        start += node.size


def _buckets(graph: Graph, bucket_bytes: int) -> Iterator[list[Node]]:
    """Yield buckets of collectives, in the order in which their inputs are computed."""
    position = {node: i for i, node in enumerate(graph.by_order())}
    collectives = [node for node in graph if isinstance(node.op, Collective)]
    needed: set[Node] = set()  # the nodes that collectives depend on
    for node in reversed(graph.order):
        if isinstance(node.op, Collective) or node in needed:
            needed.update(node.inputs)
    open_buckets: dict[tuple[object, ...], list[Node]] = {}
    for node in sorted(collectives, key=lambda node: position[node.inputs[0]]):
        is_large = node.spec.nbytes >= bucket_bytes  # copying it into a bucket costs too much
        if not isinstance(node.op, AllReduce) or node in needed or is_large or not node.size:
            yield [node]
            continue
        key = node.op.world, node.op.combines, node.dtype
        bucket = open_buckets.setdefault(key, [])
        bucket.append(node)
        if sum(x.spec.nbytes for x in bucket) >= bucket_bytes:
            yield open_buckets.pop(key)
    yield from open_buckets.values()
