"""Which nodes become one kernel, which do not and why, and that nothing else changes."""

import numpy as np
import pytest
from rewriting import graph_of, run, values
from samples import ELEMENTWISE, default_dtype, is_random, operand_dtypes

import minigraph as mg
from minigraph import ops
from minigraph.graph import Graph, Input, toposort
from minigraph.jit.fused import Fused, Together
from minigraph.jit.kernel import specialise
from minigraph.passes.kernels.decomposition import take_apart
from minigraph.passes.kernels.fusion import fuse_elementwise, fuse_kernels
from minigraph.passes.kernels.gathering import Gathering, gather_updates
from minigraph.passes.kernels.group import MAX_NODES, MAX_READS
from minigraph.passes.notes import Notes

A, B, C = (mg.input(name, (16, 32)) for name in "abc")
ROW, COLUMN = mg.input("row", (32,)), mg.input("column", (16, 1))
SQUARE = mg.input("square", (16, 16))
W = mg.input("w", (32, 32))
IMAGES = mg.input("images", (4, 8, 6, 6))
CHANNELS = mg.input("channels", (8, 1, 1))


def of(*ys):
    """The graph of expressions, with what they read for inputs."""
    return Graph(tuple(x for x in toposort(ys) if isinstance(x.op, Input)), ys)


def units(graph):
    """What is executed, in order; of a kernel its ops and, if there are several, its results."""
    found = []
    for node in graph:
        if isinstance(node.op, Fused):
            ops = " ".join(x.op.name for x in node.op.graph if x.inputs and not x.op.is_view)
            found.append(ops + (f" -> {len(node.specs)}" if node.is_bundle else ""))
        elif node.inputs and node.op.name != "item" and not node.op.is_view:
            found.append(f"[{node.op.name}]")
    return found


def fused(*ys, by=fuse_kernels):
    """The units that a pass makes of expressions, each of which is there and computes the same."""
    before = of(*ys)
    graph, _ = run(by, before)
    again, fired = run(by, graph)
    assert str(again) == str(graph) and not fired
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(graph(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(new, old)
    return units(graph)


def reasons(*ys, by=fuse_kernels):
    """Why neighbours were not fused, as (op that is read, reader, reason)."""
    notes = Notes()
    by(of(*ys), notes)
    return [(stop.producer, stop.consumer, stop.reason) for stop in notes.stops]


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


# ---------------------------------------------------------------- reductions


def softmax(x, axis):
    e = ops.exp(x - ops.max(x, axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def batch_norm(x):
    distance = x - x.mean((0, 2, 3), keepdims=True)
    variance = (distance * distance).mean((0, 2, 3), keepdims=True)
    return distance * ops.rsqrt(variance + 1e-5) * CHANNELS + 1


LOGSUMEXP = "max isfinite where subtract exp sum log add"
ROWS = {
    "work before": ((A * B).sum(1), "multiply sum"),
    "work after": (A.max(1) * 2 + 1, "max multiply add"),
    "before and after": ((A * B).sum(1, keepdims=True) * 2, "multiply sum multiply"),
    "all axes": (ops.mse_loss(A, B), "subtract multiply sum divide"),
    "a mean taken away": (A - A.mean(1, keepdims=True), "sum divide subtract"),
    "a mean of all": (A - A.mean(), "sum divide subtract"),
    "variance": (ops.var(A, 1), "sum divide subtract multiply sum divide"),
    "softmax": (softmax(A * 2, 1), "multiply max subtract exp sum divide"),
    "log softmax": (A - ops.logsumexp(A, 1, keepdims=True), f"{LOGSUMEXP} subtract"),
    "logsumexp": (ops.logsumexp(A, 1), LOGSUMEXP),
    "layer norm": (
        ops.layer_norm(A, (32,), ROW),
        "sum divide subtract multiply sum divide add rsqrt multiply multiply",
    ),
    "batch norm": (
        ops.relu(batch_norm(IMAGES)),
        "sum divide subtract multiply sum divide add rsqrt multiply multiply add relu",
    ),
    "two reductions of one kind": (A.sum(1) + (B * 2).max(1), "sum multiply max add"),
    "a result that meets another array": (A.sum(1, keepdims=True) + B * 2, "sum multiply add"),
    "read transposed": ((mg.input("t", (32, 16)).T * A).sum(1), "multiply sum"),
    "integers": (mg.input("i", (6, 7), "int16").sum(1) + 1, "sum add"),
    "bools": ((A > 0).sum(1) * 2, "greater sum multiply"),
}


@pytest.mark.parametrize(("y", "kernel"), ROWS.values(), ids=ROWS)
def test_reductions_along_rows_take_the_work_before_and_after(y, kernel):
    assert fused(y) == [kernel]


COLUMNS = {
    "work before": ((A * B).sum(0), "multiply sum"),
    "work after": (A.max(0) * 2 + 1, "max multiply add"),
    "before and after": ((A * B).sum(0) * ROW + 1, "multiply sum multiply add"),
    "outer axes of images": ((IMAGES * CHANNELS).sum((0, 1)) + 1, "multiply sum add"),
    "two reductions": ((A * B).sum(0) / A.max(0), "multiply sum max divide"),
}


@pytest.mark.parametrize(("y", "kernel"), COLUMNS.values(), ids=COLUMNS)
def test_reductions_down_columns_take_the_work_before_and_after(y, kernel):
    assert fused(y) == [kernel]


def test_a_reduction_may_store_what_it_reduces():
    e = ops.exp(A)
    assert fused(e, e.sum(1)) == fused(e.sum(1), e) == ["exp sum -> 2"]
    assert fused(e, e.sum(0) + 1) == ["exp sum add -> 2"]


def test_running_statistics_are_computed_beside_the_batch_norm():
    mean = IMAGES.mean((0, 2, 3), keepdims=True)
    y = (IMAGES - mean) * CHANNELS
    assert fused(y, mean) == ["sum divide subtract multiply -> 2"]
    running = mg.Parameter(np.zeros((1, 8, 1, 1), "float32"))
    assert fused(y, running * 0.9 + mean * 0.1)[0] == "sum divide subtract multiply -> 2"


def test_columns_are_not_run_over_twice():
    assert fused(softmax(A, 0)) == ["[max]", "subtract exp sum -> 2", "[divide]"]
    why = "the kernel would have to read whole columns twice"
    assert set(reasons(softmax(A, 0))) == {
        ("sum", "divide", why),
        ("max", "subtract", why),
    }
    top = A.max(0) * 2  # is needed for every row, and once more after the last
    assert fused((A - top).sum(0) + top) == ["[max]", "multiply subtract sum add"]


def test_reductions_over_different_axes_are_different_kernels():
    for shared, kernels in (
        (A * 2, ["multiply sum", "multiply sum"]),  # rather than stored
        (A * B, ["multiply sum -> 2", "[sum]"]),
        (ops.exp(A), ["exp sum -> 2", "[sum]"]),
    ):
        assert fused(shared.sum(0), shared.sum(1)) == kernels
    assert fused((A * 2).sum(0) + (SQUARE[0] * 2).sum()) == ["multiply sum", "multiply sum add"]
    y = A.sum(0, keepdims=True) + A.sum(1, keepdims=True) * B
    assert ("sum", "add", "the kernel reduces over other axes") in reasons(y)


def test_a_reduction_of_a_reduction_is_another_kernel():
    assert fused((A * B).sum(0).sum() * 2) == ["multiply sum", "sum multiply"]


def test_few_long_rows_are_one_kernel():
    """Threads share each of them."""
    long = mg.input("long", (2, 100_000))
    assert fused(softmax(long, 1)) == ["max subtract exp sum divide"]
    assert fused((long * 2).sum(1) + 1) == ["multiply sum add"]


def test_an_argmax_has_a_kernel_of_its_own():
    assert fused(ops.argmax(A * B + 1, 1) * 2) == ["multiply add", "[argmax]", "[multiply]"]


def test_level_1_of_the_jit_keeps_reductions_out():
    y = softmax(A * 2, 1) * B + 1
    assert fused(y, by=fuse_elementwise) == [
        *("[multiply]", "[max]", "subtract exp", "[sum]"),
        "divide multiply add",
    ]


@pytest.mark.parametrize(
    ("y", "units"),
    [
        (ops.softmax(A * 2) * B, ["multiply max subtract exp sum divide multiply"]),
        (ops.log_softmax(A) + 1, ["max subtract exp sum log subtract add"]),
        (ops.softmax(A, 0) * 2, ["[softmax]", "[multiply]"]),  # alone, it has a better kernel
        (ops.softmax(mg.input("long", (2, 10_000))), ["max subtract exp sum divide"]),
    ],
)
def test_composed_ops_are_taken_apart_where_one_kernel_can_compute_them(y, units):
    assert fused(y, by=lambda graph, notes: fuse_kernels(take_apart(graph, notes), notes)) == units


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


# ---------------------------------------------------------------- gathering


LIMITS = Gathering()


def gather(graph, limits=LIMITS):
    """The graph, and how many updates were gathered."""
    notes = Notes()
    return gather_updates(graph, notes, limits), notes.fired["together"]


def gathered(*ys, limits=LIMITS):
    """How many launches of how many parts become of updates."""
    graph, _ = gather(of(*ys), limits)
    again, fired = gather(graph, limits)
    assert str(again) == str(graph) and not fired
    return [len(node.op.ops) for node in graph if isinstance(node.op, Together)]


def test_small_results_that_nothing_reads_are_one_launch():
    assert gathered(A + 1, B * 2, ROW - 1) == [3]
    assert gathered(*of(A + 1, B * 2, C).outputs) == [2]


def test_what_is_read_is_not_gathered():
    e = ops.exp(A)
    assert gathered(e, e @ W, B + 1, C + 1) == [2]
    assert gathered(e, e + 1) == []
    assert gathered(A + 1) == []


def test_what_is_large_has_a_launch_of_its_own():
    large = mg.input("large", (LIMITS.operand // 4 + 1,))
    assert gathered(large + 1, large * 2, A + 1) == []
    assert gathered(large + 1, large * 2, A + 1, limits=Gathering(LIMITS.operand + 4)) == [3]
    assert gathered(large[1:] + 1, large[:-1] + 2) == [2]


def test_what_would_wait_with_much_has_a_launch_of_its_own():
    sums = [ops.negative((ops.exp(x) @ W).sum(0, keepdims=True)) for x in (A, B)]
    graph, _ = run(fuse_kernels, of(*sums))
    assert gathered(*graph.outputs) == []
    assert gathered(*(ops.negative(ops.exp(x).sum(0)) for x in (A, B))) == [2]
    few = LIMITS.waiting // A.spec.nbytes
    products = of(*((A @ W) * i for i in range(few + 9)))
    assert gather(products)[1] == few
    assert gather(products, Gathering(waiting=LIMITS.waiting * 2))[1] == few + 9


def test_gathered_kernels_keep_their_several_results():
    e, f = ops.exp(A), ops.exp(ROW)
    before = of(e, e * B + 1, f, f + 1)
    graph, _ = gather(run(fuse_kernels, before)[0])
    (launch,) = (node for node in graph if isinstance(node.op, Together))
    assert [part.name for part in launch.op.ops] == ["fused", "fused"]
    xs = [values(x.dtype, x.shape) for x in before.inputs]
    for new, old in zip(graph(*xs), before(*xs), strict=True):
        np.testing.assert_array_equal(new, old)


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
    take = fuse_kernels.__globals__["Group"].take
    monkeypatch.setattr(
        fuse_kernels.__globals__["Group"], "take", lambda *args: tried.append(args) or take(*args)
    )
    for count in (1000, 10_000):
        tried.clear()
        fuse_kernels(of(chain(A, count)), Notes())
        assert count - 1 <= len(tried) <= 1.1 * count


def test_a_kernel_takes_the_place_of_what_it_computes():
    y = A * B + C
    graph, _ = run(fuse_kernels, graph_of(lambda *xs: y, A, B, C))
    (kernel,) = (node for node in graph if isinstance(node.op, Fused))
    assert kernel.source == y.source and kernel.turn[0] == y.turn[0]
    assert [node.source for node in kernel.op.graph if node.inputs] == [
        y.inputs[0].source,
        y.source,
    ]


def test_equal_kernels_are_equal_ops():
    made = [y for x in (A, B) for y in (x * x + 1, x * x + 2)]
    graph, _ = run(fuse_kernels, of(*made))
    ops_of = [node.op for node in graph if isinstance(node.op, Fused)]
    assert len(ops_of) == 4 and len(set(ops_of)) == 2
