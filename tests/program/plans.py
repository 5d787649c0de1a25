"""Programs that are lowered for both devices, and what makes their plans sound."""

import itertools

import numpy as np
from random_graphs import RandomGraph
from random_lines import MORE

from minigraph import options
from minigraph.devices.factory import open_backend
from minigraph.graph import ALIGNMENT, Graph, as_node
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.program import MemorySpace
from minigraph.program.lower import lower
from minigraph.program.memory import plan

DEVICES = ["cpu", "reference"]


def real(rng, size):
    return rng.uniform(-2, 2, size).astype(np.float32)


def random_program(device, seed):
    """Return a random graph, lowered."""
    graph = RandomGraph(seed, more=MORE)
    outputs, updates = map(as_node, graph.outputs), graph.updates.items()
    new = {p: as_node(value).astype(p.dtype) for p, value in updates}
    return lowered(device, [*outputs], graph.inputs, new)


def lowered(device, outputs, inputs=(), updates=()):
    new = dict(updates)
    graph = number_streams(Graph((*inputs, SEED, STEP), (*outputs, *new.values())))
    backend = open_backend(device, options.resolve({"num_threads": 2}))
    return plan(lower(graph, len(outputs), list(new), backend, lambda *node: None))


def in_arena(program):
    return [b for b in program.buffers if b.space is MemorySpace.ARENA and b.nbytes]


def assert_plan_is_sound(program):
    buffers = in_arena(program)
    for b in buffers:
        assert 0 <= b.first <= b.last <= len(program.steps)
        assert b.offset % ALIGNMENT == 0
        assert 0 <= b.offset <= program.arena_bytes - b.nbytes
    for a, b in itertools.combinations(buffers, 2):
        together = a.first <= b.last and b.first <= a.last
        overlap = a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
        if together and overlap:  # in place: one ends where the other begins
            a, b = (a, b) if a.successor is b else (b, a)
            assert a.successor is b
            assert a.last == b.first
    for time, step in enumerate(program.steps):
        for b in (*(v.buffer for v in (*step.inputs, *step.outputs)), step.scratch):
            assert b in program.buffers
            assert b.first <= time <= b.last
    for view in (*program.outputs, *(view for _, view in program.updates)):
        assert view.buffer.last == len(program.steps)
    assert program.arena_bytes <= program.unplanned_bytes
