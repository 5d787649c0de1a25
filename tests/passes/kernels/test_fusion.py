"""Fusion of any number of ops, and its limits; see `fusion` in `cases/`."""

import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, default_dtype, is_random, operand_dtypes
from fused_units import A, B, C, W, of, units
from needs import needs_compiler
from rewriting import graph_of, run, values

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.fused import Fused
from minigraph.passes.kernels.fusion import fuse_kernels
from minigraph.passes.kernels.group import MAX_NODES, MAX_READS, FusionGroup
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import Notes


def fused(*ys):
    """Return the kernels that fusion makes; each exists and computes the same results."""
    before = of(*ys)
    graph, _ = run(fuse_kernels, before)
    again, fired = run(fuse_kernels, graph)
    assert str(again) == str(graph) and not fired
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(graph(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(new, old)
    return units(graph)


def reasons(*ys):
    """Return the reasons for neighbours that were not fused."""
    notes = Notes()
    fuse_kernels(of(*ys), notes)
    return {stop.reason for stop in notes.stops}


def chain(x, count):
    for i in range(count):
        x = ops.tanh(x) if i % 2 else x * B
    return x


def test_every_elementwise_op_joins_a_kernel():
    for op in ELEMENTWISE.values():
        if not is_random(op):
            dtypes = operand_dtypes(op, default_dtype(op))
            y = op(*(mg.input(f"x{i}", (16, 32), dtype) for i, dtype in enumerate(dtypes)))
            assert fused(ops.logical_not(y)) == [f"{op.name} logical_not"]


def test_nothing_to_fuse_leaves_the_graph_as_it_is():
    for graph in (Graph((), ()), of(A), of(A, A), of(A @ W), of(mg.Parameter(1.0)), of(A.T, A)):
        new, fired = run(fuse_kernels, graph)
        assert new.outputs == graph.outputs and not fired


def test_a_kernel_has_a_largest_number_of_ops_and_of_operands():
    sizes = [unit.count(" ") + 1 for unit in fused(chain(A, 250))]
    assert sum(sizes) == 250 and max(sizes) == MAX_NODES and len(sizes) == 3
    assert "a kernel has at most 100 ops" in reasons(chain(A, 250))
    many = [mg.input(f"x{i}", (4,)) for i in range(2 * MAX_READS)]
    graph, _ = run(fuse_kernels, of(sum(many)))
    reads = [len(node.inputs) for node in graph if isinstance(node.op, Fused)]
    assert len(reads) == 3 and max(reads) == MAX_READS
    assert "a kernel reads at most 24 arrays at once" in reasons(sum(many))


def test_values_that_a_kernel_cannot_hold_as_numbers_are_read():
    table = np.arange(32, dtype="float32")
    (graph, _) = run(fuse_kernels, of(A * table + np.float32(0.1)))
    (kernel,) = (node for node in graph if isinstance(node.op, Fused))
    assert [x.shape for x in kernel.inputs] == [(16, 32), (32,)]


def test_layer_norm_keeps_its_input_and_two_numbers_of_a_row_for_its_gradient():
    rows, weight = mg.input("rows", (64, 256)), mg.Parameter(np.ones(256, "float32"))
    p = mg.Parameter(np.ones((256, 256), "float32"))
    x = rows @ p + rows
    loss = (ops.layer_norm(x, 256, weight) @ p + x).sum()
    graph = Graph((rows,), (loss, *mg.grad(loss, [p, weight])))
    graph = optimize(graph, pipeline(3, jit=2))[-1][0]
    norm = next(node for node in graph if isinstance(node.op, Fused))
    kept = [64, 64, x.size]
    assert sorted(spec.size for spec in norm.specs) == [*kept, x.size]  # and the product's operand


def test_the_work_is_linear_in_the_graph(monkeypatch):
    tried = []
    add = fuse_kernels.__globals__["FusionGroup"].add
    monkeypatch.setattr(
        fuse_kernels.__globals__["FusionGroup"],
        "add",
        lambda *args: tried.append(args) or add(*args),
    )
    for count in (1000, 3000):
        tried.clear()
        fuse_kernels(of(chain(A, count)), Notes())
        assert count - 1 <= len(tried) <= 1.1 * count


def test_a_kernel_takes_the_place_of_what_it_computes():
    y = A * B + C
    graph, _ = run(fuse_kernels, graph_of(lambda *xs: y, A, B, C))
    (kernel,) = (node for node in graph if isinstance(node.op, Fused))
    assert kernel.source == y.source and kernel.order[0] == y.order[0]
    assert [node.source for node in kernel.op.graph if node.inputs] == [
        y.inputs[0].source,
        y.source,
    ]


def test_equal_kernels_are_equal_ops():
    results = [y for x in (A, B) for y in (x * x + 1, x * x + 2)]
    graph, _ = run(fuse_kernels, of(*results))
    ops_of = [node.op for node in graph if isinstance(node.op, Fused)]
    assert len(ops_of) == 4 and len(set(ops_of)) == 2


def test_a_node_leaves_a_kernel_that_others_are_in():
    x = mg.input("x", (3,))
    y = ops.exp(x)
    z = y + 1
    group = FusionGroup(0, 0)
    group.start(z)
    group.add(y, [z], stored=False)
    group.remove(y)
    assert [*map(id, group.members)] == [id(z)] and y not in group.loops


@needs_compiler
@pytest.mark.parametrize("level", [2, 3])
def test_a_kernel_of_rows_across_the_order_in_memory_reads_a_copy(level):
    x = mg.input("x", (2, 96, 12, 10))
    y = ops.layer_norm(ops.permute_dims(x, (0, 2, 3, 1)), (96,))
    values = np.random.default_rng(0).standard_normal(x.shape).astype("float32")
    step = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], y)
    want = mg.comp_graph("reference").compile([x], y)(values)
    np.testing.assert_allclose(step(values), want, rtol=1e-5, atol=1e-6)
    assert "copy" in [kernel.name for kernel in step.profile(values).kernels]
