"""Which nodes become one kernel, which do not and why, and that nothing else changes."""

import numpy as np
import pytest
from elementwise_samples import ELEMENTWISE, default_dtype, is_random, operand_dtypes
from fused_units import (
    CHANNELS,
    COLUMN,
    IMAGES,
    ROW,
    SQUARE,
    A,
    B,
    C,
    W,
    fused,
    of,
    reasons,
    softmax,
)
from rewriting import graph_of, run

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import specialise
from minigraph.passes.kernels.fusion import fuse_elementwise, fuse_kernels
from minigraph.passes.kernels.group import MAX_NODES, MAX_READS, FusionGroup
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import Notes

# ---------------------------------------------------------------- elementwise


def chain(x, count):
    for i in range(count):
        x = ops.tanh(x) if i % 2 else x * B
    return x


def dropout_by_hand(x):
    return ops.where(x > 0.5, x * 2, 0)


ONE_KERNEL = {
    "a product of three": (A * B * C, "multiply multiply"),
    "the other way round": (C * (B * A), "multiply multiply"),
    "a product and a sum": (A * B + C, "multiply add"),
    "a chain of 12": (chain(A, 12), " ".join(["multiply tanh"] * 6)),
    "one operand twice": (ops.exp(A) * ops.exp(A), "exp exp multiply"),
    "a value with two readers inside": (dropout_by_hand(A + B), "add greater multiply where"),
    "a row, cheap": (A * (ROW + 1) + B, "add multiply add"),
    "a column, costly": (A * ops.exp(COLUMN) + B, "exp multiply add"),
    "an outer product": (ops.broadcast_to(COLUMN * 2, (16, 32)) * ROW, "multiply multiply"),
    "what is read transposed": (mg.input("t", (32, 16)).T * 2 + A, "multiply add"),
    "transposed inside": ((A * B).T + mg.input("t", (32, 16)), "multiply add"),
    "one input at two places": (SQUARE * 2 + SQUARE.T, "multiply add"),
    "axes of length 1": ((A * B).reshape(16, 1, 32) + ROW, "multiply add"),
    "axes of length 1 that repeat": ((A * B)[:, None] * mg.input("q", (5, 1)), "multiply multiply"),
    "no axes": (mg.input("s", ()) * 2 + 1, "multiply add"),
    "one element": (mg.input("s", (1, 1)) * 2 + 1, "multiply add"),
    "integers": (mg.input("i", (6,), "int8") * 3 // 2, "multiply floor_divide"),
    "bools": (ops.logical_not((A > B) & (A > C)), "greater greater bitwise_and logical_not"),
    "double precision": (mg.input("d", (6,), "float64") * 3 + 2, "multiply add"),
    "half precision": (mg.input("h", (6,), "float16") * 3 + 2, "multiply add"),
    "several types": ((A > 0).astype("int32") * 2, "greater astype multiply"),
}


@pytest.mark.parametrize(("y", "kernel"), ONE_KERNEL.values(), ids=ONE_KERNEL)
def test_elementwise_ops_that_read_one_another_are_one_kernel(y, kernel):
    assert fused(y) == fused(y, by=fuse_elementwise) == [kernel]


def test_every_elementwise_op_joins_a_kernel():
    for op in ELEMENTWISE.values():
        if not is_random(op):
            dtypes = operand_dtypes(op, default_dtype(op))
            y = op(*(mg.input(f"x{i}", (16, 32), dtype) for i, dtype in enumerate(dtypes)))
            assert fused(ops.logical_not(y)) == [f"{op.name} logical_not"]


def test_one_op_is_no_group():
    assert fused(A + B) == ["[add]"]
    assert fused(A + B, A * C) == ["[add]", "[multiply]"]
    assert fused((A + B).T) == ["[add]"]
    assert fused(ops.broadcast_to(A + 1, (2, 16, 32))) == ["[add]"]
    assert fused(A.sum(0)) == ["[sum]"]


def test_nothing_to_fuse_leaves_the_graph_as_it_is():
    for graph in (Graph((), ()), of(A), of(A, A), of(A @ W), of(mg.Parameter(1.0)), of(A.T, A)):
        new, fired = run(fuse_kernels, graph)
        assert new.outputs == graph.outputs and not fired


def test_a_value_in_the_middle_may_be_an_output_too():
    e = ops.exp(A)
    assert fused(e, e * B + C) == fused(e * B + C, e) == ["exp multiply add -> 2"]
    assert fused(e, e.T, (e * B + C).T) == ["exp multiply add -> 2"]


def test_what_has_elements_of_its_own_is_not_stored_by_a_larger_kernel():
    r = ROW + 1
    assert fused(r * A + B, r) == ["[add]", "multiply add"]
    assert ("add", "multiply", "the result is stored, and has fewer axes than the kernel") in (
        reasons(r * A + B, r)
    )


def test_what_is_costly_is_not_computed_again_for_each_row():
    assert fused(A * ops.exp(ROW) + B) == ["[exp]", "multiply add"]
    assert ("exp", "multiply", "the kernel would compute the op again for every row") in (
        reasons(A * ops.exp(ROW) + B)
    )


def test_a_value_at_two_places_at_once_is_computed_before():
    t = SQUARE * 2 + 1
    assert fused(t + t.T) == ["multiply add", "[add]"]
    why = "the kernel would need two elements of the result at once"
    assert ("add", "permute_dims", why) in reasons(t + t.T)


def test_a_kernel_has_a_largest_number_of_ops_and_of_operands():
    sizes = [unit.count(" ") + 1 for unit in fused(chain(A, 250))]
    assert sum(sizes) == 250 and max(sizes) == MAX_NODES and len(sizes) == 3
    assert "a kernel has at most 100 ops" in {why for *_, why in reasons(chain(A, 250))}
    many = [mg.input(f"x{i}", (4,)) for i in range(2 * MAX_READS)]
    graph, _ = run(fuse_kernels, of(sum(many)))
    reads = [len(node.inputs) for node in graph if isinstance(node.op, Fused)]
    assert len(reads) == 3 and max(reads) == MAX_READS
    assert "a kernel reads at most 24 arrays at once" in {why for *_, why in reasons(sum(many))}


def test_empty_arrays_are_left_alone():
    x = mg.input("x", (0, 4))
    assert fused(x * 2 + 1, (x * 2).sum(0)) == ["[multiply]", "[add]", "[multiply]", "[sum]"]


def test_values_that_a_kernel_cannot_hold_as_numbers_are_read():
    table = np.arange(32, dtype="float32")
    (graph, _) = run(fuse_kernels, of(A * table + np.float32(0.1)))
    (kernel,) = (node for node in graph if isinstance(node.op, Fused))
    assert [x.shape for x in kernel.inputs] == [(16, 32), (32,)]


# ---------------------------------------------------------------- heavy ops


def test_ops_around_a_product_are_a_kernel_before_and_one_after():
    y = ops.relu((ops.exp(A) * B) @ W * 2 + 1)
    assert fused(y) == ["exp multiply", "[matmul]", "multiply add relu"]
    assert {why for *_, why in reasons(y)} == {"matmul has a kernel of its own"}


def test_nothing_is_fused_across_a_product_that_lies_between():
    e = ops.exp(A) * B
    assert fused(e @ W + e) == ["exp multiply", "[matmul]", "[add]"]
    assert fused(e + e @ W) == ["exp multiply", "[matmul]", "[add]"]
    cheap = A + B
    assert fused(cheap @ W * C + cheap) == ["[add]", "[matmul]", "multiply add"]
    both = ops.tanh(e) @ W * e + e  # two ways round the product
    assert fused(both) == ["exp multiply tanh -> 2", "[matmul]", "multiply add"]


def test_nothing_is_fused_across_a_chain_of_products():
    y = x = A * B + C
    for _ in range(3):
        y = (y + x) @ W
    assert fused(y) == [
        "multiply add add -> 2",
        "[matmul]",
        "[add]",
        "[matmul]",
        "[add]",
        "[matmul]",
    ]


def test_a_residual_block_runs_in_order():
    w = mg.input("kernel", (8, 8, 3, 3))
    x = ops.relu(IMAGES * CHANNELS)
    y = ops.relu(ops.conv2d(x, w, padding=1) * CHANNELS + x)
    kernel = "multiply add relu"
    assert fused(y.mean((2, 3)), y) == ["multiply relu", "[conv2d]", f"{kernel} sum divide -> 2"]


def test_views_between_kernels_stay_views():
    y = ops.exp(A * B)[::2, 4:] * 2 + 1
    assert fused(y) == ["multiply exp", "multiply add"]
    assert fused((A * B).reshape(8, 64) + 1) == ["[multiply]", "[add]"]
    assert ("slice", "multiply", "a kernel cannot read through slice") in reasons(y)
    assert ("reshape", "add", "a kernel cannot read through reshape") in reasons(
        (A * B).reshape(8, 64) + 1
    )


# ---------------------------------------------------------------- random numbers


def test_random_numbers_are_drawn_inside_a_kernel():
    assert fused(ops.dropout(A, 0.5)) == ["random_uniform greater_equal multiply where"]


def test_random_numbers_are_drawn_before_what_runs_in_another_order():
    noise = ops.random_uniform((32, 16))
    assert fused(noise.T * A + 1) == ["[random_uniform]", "multiply add"]
    assert fused((noise * 2).sum(1)) == ["[random_uniform]", "multiply sum"]
    row = ops.random_uniform((32,))
    assert fused(A * row + 1) == ["[random_uniform]", "multiply add"]
    flat = "the kernel does not run in the order in which random numbers are drawn"
    for y in (noise.T * A, (noise * 2).sum(1), A * row + 1):
        assert flat in {why for *_, why in reasons(y)}


# ---------------------------------------------------------------- again, and for how long


def test_what_is_cheap_is_computed_again_not_stored():
    centred = A - COLUMN
    y = ops.exp(centred) @ W  # lies between
    assert fused(y * centred * A) == ["subtract exp", "[matmul]", "subtract multiply multiply"]
    costly = ops.exp(A) - COLUMN
    assert fused(ops.tanh(costly) @ W * costly * A) == [
        *("exp subtract tanh -> 2", "[matmul]", "multiply multiply")
    ]


def test_what_cheap_ops_make_of_values_at_hand_is_computed_again_though_it_is_stored():
    """As the output of a ReLU is, of which the gradient asks the signs alone."""
    y = ops.relu(A * 2 - COLUMN)  # which the product reads
    assert fused(ops.where(y <= 0, 0.0, y @ W) * A) == [
        *("multiply subtract relu", "[matmul]", "multiply subtract relu less_equal where multiply")
    ]
    other = ops.sinh(A)  # which the last kernel does not read
    y = ops.relu(other * 2 - COLUMN)
    assert fused(ops.where(y <= 0, 0.0, y @ W) * A)[-1] == "less_equal where multiply"


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


def test_what_would_keep_its_inputs_longer_is_computed_at_once():
    """Either of two arrays that die, or their sum, waits for the kernel after the products."""
    x, w = mg.input("x", (64, 64)), mg.input("w", (64, 64))
    left, right = x @ w, x.T @ w
    waits, later = left + right, ops.exp(x) @ w @ w
    assert fused(later * waits)[-1] == "[multiply]"
    assert fused((later * waits) @ w)[-2:] == ["[multiply]", "[matmul]"]
    why = "the inputs would have to stay in memory for longer"
    assert ("add", "multiply", why) in reasons(later * waits)
    assert fused(later * (left + 1))[-1] == "add multiply"  # whose input is no larger than it is
    assert fused(later * (left[0] + x[:, :1]))[-1] == "add multiply"


# ---------------------------------------------------------------- what it takes


def test_every_kernel_that_fusion_makes_can_be_generated():
    row = ROW + 1
    total = (row * A).sum(1)
    for ys, kernels in (
        ((total, row), ["[add]", "multiply sum"]),
        ((A * 2 + row, row.sum(), row), ["[add]", "multiply add", "[sum]"]),
        (
            (softmax(A, 1).sum(0), A.sum(1) * 2),
            ["max subtract exp sum -> 2", "divide sum", "sum multiply"],
        ),
    ):
        assert fused(*ys) == kernels
        for node in run(fuse_kernels, of(*ys))[0]:
            if isinstance(node.op, Fused):
                specialise(node.op.graph, [x.spec.strides for x in node.inputs])


def test_a_group_that_no_kernel_computes_is_divided():
    """Fusion lets `stored` join because it expects a sum over 32 elements; one over 16 joins."""
    mean = A.mean(1, keepdims=True)
    stored = ops.exp(mean) + 1
    assert fused(stored * B, stored, (stored * B).sum(0)) == [
        "sum divide exp add multiply -> 2",
        "multiply sum",
    ]


def test_the_work_is_linear_in_the_graph(monkeypatch):
    tried = []
    take = fuse_kernels.__globals__["FusionGroup"].take
    monkeypatch.setattr(
        fuse_kernels.__globals__["FusionGroup"],
        "take",
        lambda *args: tried.append(args) or take(*args),
    )
    for count in (1000, 10_000):
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
    made = [y for x in (A, B) for y in (x * x + 1, x * x + 2)]
    graph, _ = run(fuse_kernels, of(*made))
    ops_of = [node.op for node in graph if isinstance(node.op, Fused)]
    assert len(ops_of) == 4 and len(set(ops_of)) == 2


def test_a_node_leaves_a_kernel_that_others_are_in():
    x = mg.input("x", (3,))
    y = ops.exp(x)
    z = y + 1
    group = FusionGroup(0, 0)
    group.begin(z)
    group.take(y, [z], stored=False)
    group.leave(y)
    assert [*map(id, group.members)] == [id(z)] and y not in group.loops
