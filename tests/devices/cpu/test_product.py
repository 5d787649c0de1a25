"""Products that elementwise kernels take by tiles: right to the last row, column and thread."""

import numpy as np
import pytest
from laid_out import results_of
from needs import needs_both

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import kernels, onednn, product
from minigraph.devices.cpu.device import CpuBackend
from minigraph.graph import Graph
from minigraph.jit.product import FusedProduct
from minigraph.passes.kernels.fusion import fuse_kernels
from minigraph.passes.kernels.products import Products, fuse_products
from minigraph.passes.notes import Notes
from minigraph.program import MemorySpace

pytestmark = needs_both


def operands(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"x": (m, k), "y": (k, n), "w": (m, n), "row": (n,), "column": (m, 1)}
    return {name: rng.standard_normal(s).astype("float32") for name, s in shapes.items()}


def momentum(g, x):
    mean = 0.9 * x["w"] + g
    return mean, x["column"] - mean * x["row"]


def mask(g, x):
    chosen = g > x["row"]
    return chosen, ops.where(chosen, g, x["column"])


READERS = {
    "relu": lambda g, x: (ops.relu(g),),
    "update": lambda g, x: (x["w"] - 0.1 * g,),
    "momentum": momentum,
    "mask": mask,
    "wide": lambda g, x: (g.astype("float64") * x["w"],),
}


def kernel_of(reader, m, n, k, threads, strides=None):
    """Return the node of a product and its reader, and its kernel."""
    given = {name: mg.input(name, v.shape) for name, v in operands(m, n, k).items()}
    made = READERS[reader](given["x"] @ given["y"], given)
    graph = fuse_kernels(Graph(tuple(given.values()), made), Notes())
    graph = fuse_products(graph, Notes(), Products(sides=0, least=0))
    [node] = [node for node in graph if isinstance(node.op, FusedProduct)]
    steps = [*(strides or [x.spec.strides for x in node.inputs[:2]])]
    steps += [x.spec.strides for x in node.inputs[2:]]
    kernel = kernels._kernel(node, steps, [*node.specs], threads)
    kernel.threads = threads
    return node, kernel


def assert_computed(reader, m, n, k, threads=1, transposed=False, change=lambda xs: None):
    """The kernel computes what its node means, and writes nowhere else."""
    xs = operands(m, n, k)
    change(xs)
    strides = None
    if transposed:
        strides = [(4, 4 * m), (4, 4 * k)]
    node, kernel = kernel_of(reader, m, n, k, threads, strides)
    arrays = [xs[x.name] for x in node.inputs]
    lie = [(np.ascontiguousarray(x.T), np.transpose) if transposed else x for x in arrays[:2]]
    results = results_of(kernel, node.specs, [*lie, *arrays[2:]])
    with np.errstate(all="ignore"):
        want = node.op.forward(*arrays)
    for got, each in zip(results, want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_allclose(got, each, rtol=1e-4, atol=1e-4 * np.sqrt(k))


SIZES = [(2, 2, 1), (12, 32, 4), (13, 33, 5), (11, 31, 64), (5, 200, 3), (200, 5, 3), (75, 130, 9)]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("reader", READERS)
def test_it_computes_what_the_ops_mean(reader, size, threads):
    assert_computed(reader, *size, threads)


@pytest.mark.parametrize("columns", [64, 80, 81, 127, 128, 129, 200])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_columns_that_do_not_fit_the_cache_are_done_in_panels(columns, threads, monkeypatch):
    monkeypatch.setattr(product, "WIDEST", 64)
    assert_computed("momentum", 30, columns, 7, threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES[1:], ids=str)
def test_operands_may_be_transposed(size, threads):
    assert_computed("momentum", *size, threads, transposed=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["x", "y", "w"])
def test_nan_and_infinity_go_where_the_product_has_them(place, value):
    def change(xs):
        xs[place][1, 1] = value

    assert_computed("update", 13, 33, 3, change=change)


@pytest.mark.parametrize("lanes", [8, 16])
def test_vectors_of_8_and_of_16_floats_are_used(lanes, monkeypatch):
    monkeypatch.setattr(onednn, "block", lambda: lanes)
    assert_computed("momentum", 50, 70, 10, 2)


def test_one_text_serves_every_size():
    texts = {kernel_of("momentum", *size, 2)[1].sources[0].text for size in SIZES[2:]}
    assert len(texts) == 1


# ---------------------------------------------------------------- in training steps


@pytest.fixture
def taken(monkeypatch):
    """Small products are taken, too."""
    monkeypatch.setattr(CpuBackend, "products", Products(least=0))


OPTIMIZERS = {
    "Adam": lambda w: optim.Adam(w, lr=1e-2),
    "AdamW": lambda w: optim.AdamW(w, lr=1e-2, weight_decay=0.1),
    "SGD": lambda w: optim.SGD(w, lr=1e-2),
    "momentum": lambda w: optim.SGD(w, lr=1e-2, momentum=0.9, weight_decay=0.1),
    "RMSprop": lambda w: optim.RMSprop(w, lr=1e-2),
}


def trained(level, make, steps=4, **minimize):
    """Return a step that has run a few times, and its parameters."""
    rng = np.random.default_rng(0)
    net = nn.Sequential(nn.Linear(140, 130), nn.Tanh(), nn.Linear(130, 140))
    for p in net.parameters():
        p.assign((rng.standard_normal(p.shape) / 8).astype("float32"))
    x = mg.input("x", (6, 140))
    loss = (net(x) ** 2).mean()
    cg = mg.comp_graph(options={"graph_opt_level": level, "autotune": "off"})
    step = cg.compile([x], loss, make(net.parameters()).minimize(loss, **minimize))
    xs = rng.standard_normal((steps, 6, 140)).astype("float32")
    losses = [float(step(each)) for each in xs]
    return step, losses, [p.numpy() for p in net.parameters()]


def updates_in(step):
    """The ops of the kernels that have a product and change parameters."""
    steps = step._program.steps
    made = [s for s in steps if isinstance(s.node.op, FusedProduct)]
    assert all(s.kernel.maker == "c" for s in made)
    return [s.node.op for s in made if s.outputs[0].buffer.space is MemorySpace.PARAMETER]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_take_gradients_as_they_are_made(taken, make):
    step, losses, weights = trained(3, make)
    assert len(updates_in(step)) == 2
    _, want, plain = trained(0, make)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for got, expected in zip(weights, plain, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_no_gradient_is_in_the_arena_and_updates_are_in_place(taken):
    step, *_ = trained(3, OPTIMIZERS["Adam"])
    assert len(updates_in(step)) == 2
    assert step.report().memory.largest[0][1] < 130 * 140 * 4


def test_gradients_clipped_by_value_are_taken_and_those_clipped_by_norm_are_not(taken):
    by_value, *_ = trained(3, OPTIMIZERS["Adam"], clip_value=0.1)
    assert len(updates_in(by_value)) == 2
    by_norm, losses, _ = trained(3, OPTIMIZERS["Adam"], clip_norm=0.1)
    assert updates_in(by_norm) == []
    _, want, _ = trained(0, OPTIMIZERS["Adam"], clip_norm=0.1)
    np.testing.assert_allclose(losses, want, rtol=1e-5)


def test_large_gradients_are_taken_by_default():
    x, dy = mg.input("x", (4, 1030)), mg.input("dy", (4, 1050))
    w = mg.Parameter(np.ones((1030, 1050), "float32"))
    cg = mg.comp_graph(options={"graph_opt_level": 3, "autotune": "off"})
    step = cg.compile([x, dy], [], {w: w - 0.5 * (x.T @ dy)})
    xs = [np.random.default_rng(0).standard_normal(s.shape).astype("float32") for s in (x, dy)]
    step(*xs)
    assert len(updates_in(step)) == 1
    [kernel] = step.report().kernels
    assert kernel.ops[0] == "matmul" and kernel.name in kernel.source
    np.testing.assert_allclose(w.numpy(), 1 - 0.5 * (xs[0].T @ xs[1]), rtol=1e-4, atol=1e-5)
