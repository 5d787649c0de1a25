"""Overlap of collectives with other kernels, in the graph, the schedule and the memory plan."""

import itertools

import numpy as np
import pytest

import minigraph as mg
from minigraph import ops
from minigraph.devices.reference import ReferenceBackend
from minigraph.distributed import World
from minigraph.graph import Graph
from minigraph.passes.notes import Notes
from minigraph.passes.overlap import (
    AwaitCollective,
    StartCollective,
    compress_gradients,
    overlap_collectives,
)
from minigraph.program import MemorySpace
from minigraph.program.lower import execution_order, lower
from minigraph.program.memory import plan

WIDTH, LAYERS = 8, 4
MATRIX = 4 * WIDTH * WIDTH  # bytes


@pytest.fixture
def world():
    """A world of two processes of which only this one exists: nothing may be computed."""
    pair = World()
    pair.size = 2
    return pair


def step(world, scale=1.0):
    """Return the graph of a training step with several products, and the number of its results."""
    x = mg.input("x", (WIDTH, WIDTH))
    ws = [mg.Parameter(np.eye(WIDTH, dtype="float32"), f"w{i}") for i in range(LAYERS)]
    h = x
    for w in ws:
        h = h @ w
    loss = (h * scale).sum()
    updates = mg.optim.SGD(ws, 0.1).minimize(loss, reduce=world)
    results = (ops.all_reduce(loss, world, "mean"),)
    return Graph((x,), (*results, *updates.values())), [*updates]


def overlapped(graph, bucket_bytes):
    return overlap_collectives(graph, Notes(), bucket_bytes)


def pending_collectives(graph):
    begun = [node for node in execution_order(graph, 1) if isinstance(node.op, StartCollective)]
    return [node.op.pending.names for node in begun]


@pytest.mark.parametrize(
    ("bucket_bytes", "expected"),
    [
        (0, [("loss",), ("w3",), ("w2",), ("w1",), ("w0",)]),
        (MATRIX, [("w3",), ("w2",), ("w1",), ("w0",), ("loss",)]),  # those are large
        (MATRIX + 4, [("loss", "w3"), ("w2", "w1"), ("w0",)]),
        (1 << 20, [("loss", "w3", "w2", "w1", "w0")]),
    ],
)
def test_gradients_travel_in_buckets_in_the_order_in_which_they_are_made(
    world, bucket_bytes, expected
):
    graph, _ = step(world)
    named = [
        tuple("loss" if name.startswith("the value made") else name for name in names)
        for names in pending_collectives(overlapped(graph, bucket_bytes))
    ]
    assert sorted(named) == sorted(expected)
    gradients = [names for names in named if names != ("loss",)]
    assert gradients == [names for names in expected if names != ("loss",)]


def test_what_other_collectives_need_travels_alone(world):
    x = mg.input("x", (3,))
    first = ops.all_reduce(x, world)
    second, third = ops.all_reduce(first * 2, world), ops.all_reduce(first * 3, world)
    graph = overlapped(Graph((x,), (second, third)), 1 << 20)
    assert [len(names) for names in pending_collectives(graph)] == [1, 2]


def test_a_collective_begins_at_once_and_is_waited_for_at_the_end(world):
    graph, _ = step(world)
    order = [*execution_order(overlapped(graph, MATRIX), 1)]
    kinds = [
        node.op.name
        for node in order
        if node.op.name in ("start_collective", "await_collective", "matmul")
    ]
    # The last product is the first layer's gradient; the other reductions have started by then.
    last = len(kinds) - kinds[::-1].index("matmul") - 1
    assert kinds[:last].count("start_collective") >= LAYERS - 1
    assert "await_collective" not in kinds[:last]


def test_memory_in_flight_is_used_for_nothing_else(world):
    graph, updates = step(world)
    graph = overlapped(graph, MATRIX + 4)
    program = plan(lower(graph, 1, updates, ReferenceBackend(), lambda node, strides: None))
    flying = {}
    for now, each in enumerate(program.steps):
        if isinstance(each.node.op, StartCollective):
            flying[each.node.op.pending] = (each.outputs[0].buffer, now)
    for now, each in enumerate(program.steps):
        if isinstance(each.node.op, AwaitCollective):
            buffer, begun = flying.pop(each.node.op.pending)
            assert each.inputs[0].buffer is buffer and begun < now
            for other, between in itertools.product(program.buffers, range(begun + 1, now)):
                lives = other.first <= between <= other.last and other is not buffer
                if lives and other.space is buffer.space is MemorySpace.ARENA and other.nbytes:
                    apart = other.offset >= buffer.offset + buffer.nbytes
                    assert apart or other.offset + other.nbytes <= buffer.offset
    assert not flying


def test_only_gradients_are_compressed(world):
    graph, _ = step(world)
    small = compress_gradients(graph, Notes(), "bfloat16")
    sent = [node.inputs[0].dtype.name for node in small if node.op.name == "all_reduce"]
    assert sorted(sent) == ["bfloat16"] * LAYERS + ["float32"]
