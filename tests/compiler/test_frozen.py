"""Frozen functions: parameters are constants, and values of constants are computed once."""

import numpy as np
import pytest
from needs import needs_compiler, needs_onednn

import minigraph as mg
from minigraph import nn, ops
from minigraph.devices.cpu import onednn, winograd

CHANNELS = 32
SHAPE = (2, 3, 12, 12)


def trained_net():
    """A net whose statistics and weights are not those that it was made with."""
    nn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, 5),
    )
    rng = np.random.default_rng(0)
    for _, parameter in net.named_buffers():
        if parameter.dtype == np.float32:
            parameter.assign(rng.uniform(0.5, 2, parameter.shape).astype("float32"))
    return net.eval()


def graph(level, device="cpu", **options):
    return mg.comp_graph(device, {"graph_opt_level": level, "autotune": "off", **options})


def images(seed=0, shape=SHAPE):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def prepared(step):
    """The inputs, by step, that were prepared."""
    steps = step._program.steps
    return [(s.node.op.name, i) for s in steps for i in getattr(s.kernel, "preparations", ())]


@pytest.mark.parametrize("level", [-3, 0, 1, 2, 3])
def test_a_frozen_function_computes_what_it_was(level):
    net, x = trained_net(), mg.input("x", SHAPE)
    frozen = graph(level).compile([x], net(x), freeze=True)
    reference = graph(0, "reference").compile([x], net(x))
    for seed in range(3):
        np.testing.assert_allclose(
            frozen(images(seed)), reference(images(seed)), rtol=2e-5, atol=2e-5
        )


def test_no_parameter_is_left_and_batch_norms_are_gone():
    net, x = trained_net(), mg.input("x", SHAPE)
    frozen = graph(3).compile([x], net(x), freeze=True)
    report = frozen.report()
    assert report.memory.parameter_bytes == 0
    assert not {"batch_norm_inference", "multiply", "rsqrt"} & set(report.ops)
    assert len(report.steps) < len(graph(3).compile([x], net(x)).report().steps)


def test_later_changes_of_a_parameter_do_not_reach_it():
    w, x = mg.Parameter(np.ones(3, "float32")), mg.input("x", (3,))
    frozen = graph(3).compile([x], x * w, freeze=True)
    w.assign(np.zeros(3, "float32"))
    np.testing.assert_array_equal(frozen(np.ones(3, "float32")), [1, 1, 1])


def test_a_function_of_any_size_can_be_frozen():
    net, x = trained_net(), mg.input("x", (None, *SHAPE[1:]))
    frozen = graph(3).compile([x], net(x), freeze=True)
    plain = graph(3).compile([x], net(x))
    for count in (1, 4):
        batch = images(count, (count, *SHAPE[1:]))
        np.testing.assert_allclose(frozen(batch), plain(batch), rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("options", [{}, {"bulk": False}, {"num_threads": 1}], ids=str)
def test_weights_are_brought_into_the_kernels_layouts_once(options):
    net, x = trained_net(), mg.input("x", SHAPE)
    frozen = graph(2, **options).compile([x], net(x), freeze=True)
    plain = graph(2, **options).compile([x], net(x))
    assert {name for name, _ in prepared(frozen)} <= {"conv2d", "activated"}
    assert {i for _, i in prepared(frozen)} == {1}
    assert prepared(plain) == []
    memory = frozen.report().memory
    assert memory.arena_bytes < plain.report().memory.arena_bytes
    assert memory.peak_bytes - memory.arena_bytes > sum(p.spec.nbytes for p in net.parameters())
    np.testing.assert_allclose(frozen(images()), plain(images()), rtol=1e-5, atol=1e-5)


@needs_onednn
def test_a_kernel_that_python_runs_prepares_its_own_weights():
    net, x = trained_net(), mg.input("x", SHAPE)
    frozen = graph(0).compile([x], net(x), freeze=True)
    step = next(each for each in frozen._program.steps if each.kernel.prepared_bytes)
    xs = [images(), *(each.op.value for each in step.node.inputs[1:])]
    result = np.empty(step.node.shape, "float32")
    step.kernel.run(xs, [result], np.empty(step.kernel.scratch, "uint8"))
    np.testing.assert_allclose(result, step.node.op.forward(*xs), rtol=1e-5, atol=1e-5)


@needs_compiler
@needs_onednn
def test_tuning_measures_kernels_whose_weights_are_ready(tmp_path, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path))
    c = onednn.block()
    w = mg.Parameter(images(1, (c, c, 3, 3)))
    x = mg.input("x", (1, c, 12, 12))
    y = ops.relu(ops.conv2d(x, w, padding=1))
    cg = graph(3, autotune="tune")
    frozen, plain = cg.compile([x], y, freeze=True), cg.compile([x], y)
    (one,), (other,) = (f.report().algorithms for f in (frozen, plain))
    assert one.subject == f"{other.subject}, constant weights"
    names = {m.name for m in one.candidates if not m.error}
    assert names == {m.name for m in other.candidates if not m.error}
    assert winograd.NAME in names
    batch = images(2, (1, c, 12, 12))
    np.testing.assert_allclose(frozen(batch), plain(batch), rtol=1e-4, atol=1e-4)


def test_the_weights_of_a_layer_are_kept_once():
    layer, x = nn.Linear(300, 400), mg.input("x", (2, 300))
    frozen = graph(2).compile([x], layer(x), freeze=True)
    [weights] = [b for b in frozen._program.buffers if b.nbytes == layer.weight.spec.nbytes]
    assert weights.node.shape == layer.weight.shape
