"""What waits for the backward pass in bfloat16: `minigraph.passes.kernels.saved_activations`."""

import numpy as np
import pytest
from needs import needs_compiler
from small_functions import real

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import Graph
from minigraph.ops.conv import Conv2dBackwardWeights
from minigraph.ops.elementwise import Astype
from minigraph.passes.kernels.saved_activations import narrow_saved_activations
from minigraph.passes.levels import optimize, pipeline
from minigraph.passes.notes import Notes

SHAPE = (2, 8, 32, 32)
IMAGE = "[2,8,32,32]"


X = mg.input("x", SHAPE)
W = mg.Parameter(real(8, 8, 3, 3, seed=1) / 5, "w")
V = mg.Parameter(real(8, 8, 3, 3, seed=2) / 5, "v")


def conv(x, w):
    return ops.conv2d(x, w, padding=1)


def norm(x):
    return ops.batch_norm(x, np.zeros(8, "f"), np.ones(8, "f"), training=True)


def graphs(loss, *results, wrt=(W, V), given=X):
    """Return the graph at level 3 of a loss, its gradients and results, before and after."""
    graph = Graph((given,), (loss, *results, *mg.grad(loss, wrt)))
    before = optimize(graph, pipeline(3, False, 2))[-1][0]
    after = optimize(graph, pipeline(3, False, 2, saved_activations="bfloat16"))[-1][0]
    return before, after


def saved(graph):
    """Return what the backward pass reads of the forward pass's results, each as a text."""
    late = set()
    for node in graph:
        if node.source.backward or not late.isdisjoint(node.inputs):
            late.add(node)
    made = [x for x in graph if x.inputs and x not in late and not x.op.is_view]
    read = {x for node in late for x in node.inputs}
    return sorted(str(x.spec) for x in made if x in read and not x.is_bundle)


def check(before, after, tolerance=0.02):
    """The loss has the same bits, and gradients are the same but for the rounding to bfloat16."""
    (given,) = before.inputs
    x = real(*given.shape)
    (loss, *grads), (same, *rounded) = before(x), after(x)
    assert loss == same
    for want, got in zip(grads, rounded, strict=True):
        assert want.dtype == got.dtype
        assert np.abs(got - want).max() <= tolerance * np.abs(want).max()


def two_blocks():
    y = ops.relu(norm(conv(ops.relu(norm(conv(X, W))), V)))
    return (conv(y, W) ** 2).mean()


def test_activations_wait_in_bfloat16_and_the_forward_pass_keeps_its_bits():
    before, after = graphs(two_blocks())
    images = [[x for x in saved(graph) if IMAGE in x] for graph in (before, after)]
    # What comes last is read by the backward pass at once.
    assert images == [5 * [f"float32{IMAGE}"], 4 * [f"bfloat16{IMAGE}"] + [f"float32{IMAGE}"]]
    check(before, after)
    (_, *grads), (_, *rounded) = (graph(real(*SHAPE)) for graph in (before, after))
    assert all((x != y).any() for x, y in zip(grads, rounded, strict=True))


def test_a_kernel_that_makes_or_reads_an_array_stores_it_rounded():
    _, after = graphs(two_blocks())
    casts = [node for node in after if isinstance(node.op, Astype)]
    assert {node.dtype.name for node in casts} == {"float32"}


def test_a_cast_stores_what_only_libraries_make_and_read():
    before, after = graphs((conv(ops.max_pool2d(conv(X, W), 2), V) ** 2).mean())
    alone = [node for node in after if isinstance(node.op, Astype) and node.dtype != np.float32]
    assert [str(node.inputs[0].spec) for node in alone] == ["float32[2,8,16,16]"]
    check(before, after)


def test_a_library_gets_a_copy_in_float32_right_before_it():
    loss = (conv(ops.tanh(conv(X, W)), V) ** 2).mean()
    _, after = graphs(loss)
    order = after.by_order()
    backward = [node for node in order if isinstance(node.op, Conv2dBackwardWeights)]
    pairs = [(node, x) for node in backward for x in node.inputs if isinstance(x.op, Astype)]
    ((reader, copied),) = pairs
    places = {node: i for i, node in enumerate(order)}
    assert places[reader] == places[copied] + 1


def test_an_array_that_two_libraries_read_is_cast_once():
    y = ops.tanh(conv(X, W))
    before, after = graphs((conv(y, V) ** 2).mean() + (conv(y, W) ** 2).mean())
    casts = [node for node in after if isinstance(node.op, Astype) and node.dtype == np.float32]
    assert len(casts) == 1
    check(before, after)


def test_what_is_read_by_way_of_views_waits_rounded_too():
    x, w, v = mg.input("x", (64, 80)), mg.Parameter(real(80, 96)), mg.Parameter(real(48, 2))
    y = ops.tanh(x @ w).reshape(128, 48)
    before, after = graphs(((y @ v) ** 2).mean(), wrt=(w, v), given=x)
    assert "float32[64,96]" in saved(before)
    assert "bfloat16[64,96]" in saved(after) and "float32[64,96]" not in saved(after)
    check(before, after)


def unchanged(*args, **more):
    before, after = graphs(*args, **more)
    assert str(after) == str(before)


def test_results_inputs_and_parameters_are_saved_as_they_are():
    y = ops.tanh(conv(X, W))
    unchanged((conv(y, V) ** 2).mean(), y)
    unchanged((conv(y, V) ** 2).mean(), y.reshape(16, -1))
    unchanged((conv(X, W) ** 2).mean(), wrt=[W])


def test_small_arrays_stay_in_float32():
    x = mg.input("x", (2, 8, 8, 8))
    unchanged((conv(ops.tanh(conv(x, W)), V) ** 2).mean(), given=x)


def test_arrays_that_do_not_wait_stay_in_float32():
    x, w = mg.input("x", (64, 80)), mg.Parameter(real(80, 96))
    labels = np.zeros(64, "int64")
    unchanged(ops.cross_entropy(x @ w, labels), wrt=[w], given=x)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types_stay(dtype):
    x, w = mg.input("x", SHAPE, dtype), mg.Parameter(W.numpy().astype(dtype))
    unchanged((conv(ops.tanh(conv(x, w)), w) ** 2).mean(), wrt=[w], given=x)


def test_what_loops_make_and_read_stays():
    x = mg.input("x", (16, 16, 32))
    lstm = nn.LSTM(32, 32)
    y, _ = lstm(x)
    unchanged((y * y).mean(), wrt=lstm.parameters(), given=x)


def test_the_pass_finds_nothing_to_do_in_its_own_result():
    _, after = graphs((conv(ops.relu(norm(conv(X, W))), V) ** 2).mean())
    assert narrow_saved_activations(after, Notes(), "bfloat16") is after


# ---------------------------------------------------------------- as functions


def step(level, dtype, depth=6, **options):
    nn.manual_seed(0)
    layers = []
    for channels in (3, *(depth - 1) * [16]):
        layers += nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
    net = nn.Sequential(*layers, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16 * 16, 10))
    x, labels = mg.input("x", (8, 3, 16, 16)), mg.input("labels", (8,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.SGD(net.parameters(), 0.005).minimize(loss), **net.updates()}
    given = {"graph_opt_level": level, "graph_opt.saved_activations": dtype, "autotune": "off"}
    return mg.comp_graph("cpu", given | options).compile([x, labels], loss, updates)


def batch(i):
    return real(8, 3, 16, 16, seed=i), np.arange(8)


def losses(function, count=8):
    return [float(function(*batch(i % 2))) for i in range(count)]


@needs_compiler
def test_a_training_takes_less_memory_and_follows_that_of_float32():
    plain, small = (step(3, dtype) for dtype in ("float32", "bfloat16"))
    memory = [function.report().memory.arena_bytes for function in (plain, small)]
    assert memory[1] < 0.75 * memory[0]
    assert small.report().numpy == []
    want, got = losses(plain), losses(small)
    assert got[0] == want[0] and got[2:] != want[2:]
    np.testing.assert_allclose(got, want, rtol=0.02)
    assert want[-1] < 0.8 * want[0]


@needs_compiler
def test_a_negative_level_allows_for_the_rounding():
    losses(step(-3, "bfloat16", depth=2), 3)


@needs_compiler
def test_a_limit_of_memory_applies_to_what_is_left():
    limit = int(0.97 * step(3, "bfloat16").report().memory.arena_bytes)
    small = step(3, "bfloat16", **{"graph_opt.memory_limit": limit})
    assert small.report().memory.arena_bytes <= limit
    assert losses(small) == losses(step(3, "bfloat16"))


def test_levels_that_generate_no_kernels_save_float32():
    for jit, runs in ((0, False), (1, True), (2, True)):
        passes = pipeline(3, False, jit, saved_activations="bfloat16")
        assert ("narrow_saved_activations" in [run.__name__ for run in passes]) == runs
