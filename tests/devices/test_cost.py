"""The cost of a step counts what its kernel reads and what it writes."""

import numpy as np

from minigraph.devices.cost import cost_of
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Spec, input
from minigraph.ops.joining import Concat
from minigraph.program import Buffer, MemorySpace, Step, View

SPEC = Spec((4, 8), np.dtype(np.float32))
BUFFER = Buffer(MemorySpace.PARAMETER, SPEC.nbytes)
OTHER = Buffer(MemorySpace.ARENA, SPEC.nbytes)


def view(buffer, spec=SPEC, offset=0, strides=None):
    return View(buffer, spec, offset, strides or spec.strides)


def cost(node, inputs, outputs):
    return cost_of(Step(node, NumpyKernel(node), inputs, outputs, Buffer(MemorySpace.ARENA, 0)))


def test_an_update_in_place_reads_and_writes_its_memory():
    x, y = input("x", SPEC.shape), input("y", SPEC.shape)
    total = cost(x + y, (view(BUFFER), view(OTHER)), (view(BUFFER),))
    assert total == (3 * SPEC.nbytes, SPEC.size)


def test_a_value_that_a_step_reads_twice_is_read_once():
    x = input("x", SPEC.shape)
    assert cost(x * x, (view(BUFFER), view(BUFFER)), (view(OTHER),)).bytes == 2 * SPEC.nbytes


def test_two_parts_of_a_buffer_are_both_read():
    half = Spec((2, 8), SPEC.dtype)
    node = Concat(0)(input("x", half.shape), input("y", half.shape))
    parts = view(BUFFER, half), view(BUFFER, half, half.nbytes)
    assert cost(node, parts, (view(OTHER),)).bytes == 2 * SPEC.nbytes


def test_a_broadcast_view_reads_its_buffer_once():
    row = Buffer(MemorySpace.PARAMETER, 8 * 4)
    x, y = input("x", SPEC.shape), input("y", SPEC.shape)
    inputs = view(BUFFER), view(row, strides=(0, 4))
    assert cost(x + y, inputs, (view(OTHER),)).bytes == 2 * SPEC.nbytes + row.nbytes
