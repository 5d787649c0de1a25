"""The memory plan: what lives at once does not overlap, and little is needed."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from needs import needs_compiler, needs_kernels
from plans import assert_plan_is_sound, lowered, random_program, real

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.reference import NumpyKernel
from minigraph.graph import Graph, Spec
from minigraph.program import Buffer, MemorySpace, Program, View
from minigraph.program.memory import check_offsets, predicted_arena_bytes


@pytest.mark.parametrize("seed", range(60))
def test_buffers_that_live_at_the_same_time_do_not_overlap(device, seed):
    assert_plan_is_sound(random_program(device, seed))


def test_plan_of_a_training_step_is_sound(device):
    x, labels = mg.input("x", (8, 3, 12, 12)), mg.input("labels", (8,), "int64")
    rng = np.random.default_rng(0)
    w1, w2 = mg.Parameter(real(rng, (8, 3, 3, 3))), mg.Parameter(real(rng, (10, 8 * 25)))
    y = ops.max_pool2d(ops.relu(ops.conv2d(x, w1)), 2)
    y, _, _ = ops.batch_norm_with_statistics(y)
    loss = ops.cross_entropy(ops.linear(y.reshape(8, -1), w2), labels)
    updates = {w: w - 0.1 * dw for w, dw in zip((w1, w2), mg.grad(loss, [w1, w2]), strict=True)}
    program = lowered(device, [loss], [x, labels], updates)
    assert_plan_is_sound(program)
    assert program.arena_bytes < program.unplanned_bytes


@needs_kernels
def test_counts_of_steps_change_in_place_though_a_label_may_be_refused():
    layer, x = nn.Linear(4, 3), mg.input("x", (2, 4))
    labels = mg.input("labels", (2,), "int64")
    loss = ops.cross_entropy(layer(x), labels)
    updates = optim.Adam(layer.parameters()).minimize(loss)
    program = lowered("cpu", [loss], [x, labels], updates)
    assert len(updates) == 8
    assert not program.updates  # what is copied after the last step


@needs_compiler
@pytest.mark.parametrize("wraps", [False, True], ids=["tokens", "indices"])
def test_a_gradient_of_indices_that_were_checked_before_keeps_no_update_waiting(wraps):
    """The gradient of an embedding is the last check, and can refuse nothing any more."""
    table, layer = nn.Embedding(5, 4), nn.Linear(4, 3)
    tokens, labels = mg.input("tokens", (2,), "int64"), mg.input("labels", (2,), "int64")
    rows = ops.take(table.weight, tokens, axis=0) if wraps else table(tokens)
    loss = ops.cross_entropy(layer(rows), labels)
    updates = optim.SGD([*table.parameters(), *layer.parameters()]).minimize(loss)
    program = lowered("cpu", [loss], [tokens, labels], updates)
    checks = [step.node.op.name for step in program.steps if step.kernel.validates_input]
    assert checks == ["take", "cross_entropy", "cross_entropy_backward", "take_backward"]
    assert program.changed == set(updates) and not program.updates
    last = next(step for step in program.steps if step.node.op.name == "take_backward")
    assert last not in program.checks
    by_numpy = replace(last, kernel=NumpyKernel(last.node))  # which a signal could end
    program.steps[program.steps.index(last)] = by_numpy
    assert by_numpy in program.checks


@needs_kernels
def test_corrections_by_counts_keep_no_gradient_until_the_end():
    def arena_bytes(kind):
        net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))
        x = mg.input("x", (2, 64))
        loss = net(x).sum()
        updates = kind(net.parameters()).minimize(loss)
        return lowered("cpu", [loss], [x], updates).arena_bytes

    assert arena_bytes(optim.Adam) < arena_bytes(optim.SGD) + 3 * 64 * 64 * 4


@needs_kernels
def test_a_copy_is_said_to_be_made_where_its_value_is():
    x = mg.input("x", (4, 6))
    w = mg.Parameter(np.ones((6, 4), "float32"), "w")
    old = mg.Parameter(np.ones((6, 4), "float32"), "old")
    turned = ops.flip(x, 1)
    product = turned @ np.ones((6, 4), "float32")
    new = w + 1
    last, _ = ops.scan(lambda h, v: (v, h), x[0], x)
    outputs, updates = [product, last], {w: new, old: w}
    program = lowered("cpu", outputs, [x], updates)
    copies = [s.node for s in program.all_steps() if s.node.op.name == "copy"]
    assert {turned, w} <= {node.inputs[0] for node in copies}
    assert [node.source for node in copies] == [node.inputs[0].source for node in copies]
    profile = mg.comp_graph("cpu").compile([x], outputs, updates).profile(np.ones(x.shape, "f4"))
    lines = {node.source.brief for node in (turned, product, new, w, last)}
    assert {cost.name for cost in profile.by_layer} == lines


def test_a_long_chain_needs_a_few_buffers(device):
    x = mg.input("x", (1000,))
    y = x
    for _ in range(100):
        y = ops.tanh(y)
    program = lowered(device, [y], [x])
    assert len(program.steps) == 100
    assert program.arena_bytes <= 3 * 4032
    assert program.unplanned_bytes == 99 * 4032  # neither the input nor the result is in the arena
    assert_plan_is_sound(program)


def test_a_chain_of_growing_arrays_needs_little_more_than_the_two_largest(device):
    x = mg.input("x", (16,))
    y = x
    for _ in range(10):
        y = ops.tanh(ops.concat([y, y]))
    program = lowered(device, [y.sum()], [x])
    assert program.arena_bytes <= 3.5 * y.spec.nbytes
    assert_plan_is_sound(program)


def test_what_is_read_late_is_kept(device):
    x = mg.input("x", (1000,))
    early = [ops.tanh(x + i) for i in range(10)]
    y = x * 2
    for e in reversed(early):
        y = y + e
    program = lowered(device, [y], [x])
    assert_plan_is_sound(program)


def test_the_predicted_arena_is_half_of_the_live_intermediate_bytes():
    x, w = mg.input("x", (1000,)), mg.Parameter(np.ones((7, 11), "float32"))
    y = ops.tanh(x)
    shown = y.reshape(10, 100)
    z = ops.tanh(ops.tanh(y))

    def predicted(result, amp="off"):
        return predicted_arena_bytes(Graph((x,), (result,)), amp)

    assert predicted(y) == 0  # a result is not in the arena
    assert predicted(ops.tanh(y)) == 4000 // 2
    assert predicted(ops.tanh(y), "bfloat16") == 4000 // 4
    assert predicted(z + y) == 3 * 4000 // 2
    assert predicted(ops.tanh(z).sum() + shown.sum()) == 3 * 4000 // 2
    assert predicted(ops.tanh(ops.tanh(w * 2))) == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_is_foreseen_is_less_than_what_is_needed(seed):
    program = random_program("reference", seed)
    assert predicted_arena_bytes(program.graph, "off") <= max(program.arena_bytes, 0)


@needs_compiler
def test_a_step_overwrites_what_it_reads_for_the_last_time():
    x = mg.input("x", (1000,))
    y = x
    for _ in range(100):
        y = ops.tanh(y)
    program = lowered("cpu", [y], [x])
    assert program.arena_bytes == 4032
    assert_plan_is_sound(program)


@pytest.mark.parametrize("turned", [ops.add, lambda y, z: z + y], ids=["second", "first"])
def test_what_a_step_reads_at_two_places_is_not_overwritten(device, turned):
    x = mg.input("x", (70, 70))
    y = ops.tanh(x)
    step = turned(y, y.T)
    function = mg.comp_graph(device, {"graph_opt_level": 0}).compile([x], step * 2)
    values = real(np.random.default_rng(0), (70, 70))
    expected = (np.tanh(values) + np.tanh(values).T) * 2
    np.testing.assert_allclose(function(values), expected, 1e-5, 1e-5)


def test_report_shows_the_plan(device):
    x, w = mg.input("x", (1000,)), mg.Parameter(np.ones(1000, "float32"))
    y = x * w
    for _ in range(100):
        y = ops.tanh(y)
    memory = mg.comp_graph(device).compile([x], [y.sum(), y], {w: w * 2}).report().memory
    assert memory.parameter_bytes == 4000
    assert 0 < memory.arena_bytes <= 4 * 4032
    assert memory.unplanned_bytes >= 99 * 4000
    assert memory.peak_bytes >= memory.arena_bytes + memory.parameter_bytes + 4000


@pytest.mark.parametrize(
    ("offset", "strides"), [(0, (4,)), (8, (4,)), (12, (-4,)), (4, (-4,)), (-4, (4,)), (0, (8,))]
)
def test_what_lies_outside_of_its_buffer_is_an_error(offset, strides):
    buffer = Buffer(MemorySpace.INPUT, 16)
    view = View(buffer, Spec((3,)), offset, strides)
    fits = {offset + i * strides[0] for i in range(3)} <= {0, 4, 8, 12}
    program = Program(Graph((), ()), outputs=[view], buffers=[buffer])
    with (
        nullcontext()
        if fits
        else pytest.raises(mg.CompileError, match="exceeds its buffer of 16 bytes")
    ):
        check_offsets(program)
