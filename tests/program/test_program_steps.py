"""The steps of programs: views make none, and nothing is computed in vain."""

import numpy as np
import pytest
from plans import assert_plan_is_sound, lowered

import minigraph as mg
from minigraph import ops
from minigraph.devices.reference import ReferenceBackend
from minigraph.graph import ALIGNMENT, Graph
from minigraph.program.lower import lower


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[1:, ::2],
        lambda x: x[::-1],
        lambda x: x.reshape(6, 4),
        lambda x: x[:, None],
        lambda x: ops.broadcast_to(x, (5, 4, 6)),
        lambda x: ops.split(x, 2)[1],
        lambda x: ops.stop_gradient(x),
        lambda x: ops.flip(x.T[1:3])[:, ::-2],
        lambda x: x.T.reshape(6, 2, 2),
    ],
)
def test_a_view_makes_no_step(device, view):
    x = mg.input("x", (4, 6))
    z = mg.input("z", view(x).shape)
    y = view(x + 1) + z
    function = mg.comp_graph(device).compile([x, z], y)
    assert [name for name, _, _ in function.report().steps] == ["add", "add"]
    value = np.arange(24, dtype=np.float32).reshape(4, 6)
    other = np.arange(z.size, dtype=np.float32).reshape(z.shape)
    np.testing.assert_array_equal(function(value, other), Graph((x, z), (y,))(value, other)[0])


class Picky(ReferenceBackend):
    """A device whose products read memory from a multiple of 16 bytes on only."""

    def kernel(self, node, strides, algorithm=""):
        numpy_kernel = super().kernel(node, strides, algorithm)
        if node.op.name == "matmul":
            numpy_kernel.alignment = 16
            numpy_kernel.strided = (True, True)
            numpy_kernel.seen = strides
        return numpy_kernel


def test_a_view_is_copied_for_a_kernel_that_cannot_read_from_where_it_begins():
    x, y = mg.input("x", (6, 5)), mg.input("y", (5, 4))

    def steps(a):
        return lower(Graph((x, y), (a @ y,)), 1, [], Picky(), lambda node, strides: None).steps

    assert [step.node.op.name for step in steps(x)] == ["matmul"]
    copied = x[1:]  # rows of 20 bytes
    copy, product = steps(copied)
    assert (copy.node.op.name, product.inputs[0].offset) == ("copy", 0)
    assert product.kernel.seen[0] == (20, 4)
    for offset, names in ((4, ["matmul"]), (1, ["copy", "matmul"])):
        assert [step.node.op.name for step in steps(x[offset:])] == names


def test_a_view_that_is_a_result_is_copied_unless_it_is_contiguous(device):
    x, w = mg.input("x", (4, 6)), mg.Parameter(np.ones((4, 6), "float32"))
    program = lowered(device, [x.T, w[1:], x[::-1].T], [x])
    assert [step.node.op.name for step in program.steps] == ["copy", "copy"]
    assert all(view.contiguous for view in program.outputs)
    (step,) = lowered(device, [ops.tanh(x).T], [x]).steps[1:]
    assert step.node.op.name == "copy"


def test_an_expression_that_is_used_twice_is_computed_once(device):
    x = mg.input("x", (4, 6))
    y = ops.tanh(x)
    program = lowered(device, [y + y, y * 2, y.T + 1, y], [x])
    assert [step.node.op.name for step in program.steps].count("tanh") == 1


def test_nothing_is_computed_that_no_result_needs(device):
    x = mg.input("x", (4, 6))
    y = ops.exp(x)
    _ = ops.tanh(y) + 1
    assert len(lowered(device, [y], [x]).steps) == 1


def test_an_empty_array_takes_no_memory(device):
    x = mg.input("x", (0, 6))
    program = lowered(device, [(ops.tanh(x) + 1).sum()], [x])
    assert_plan_is_sound(program)
    assert program.arena_bytes <= ALIGNMENT
