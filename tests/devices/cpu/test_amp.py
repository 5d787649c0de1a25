"""`amp="bfloat16"` on the CPU: the same results in fewer bits, by kernels that compute in them."""

import functools

import numpy as np
import pytest
from long_runs import mostly_long
from meaning import Meaning
from needs import needs_bfloat16, needs_onednn
from noise import noisy
from random_graphs import RandomGraph
from small_functions import real
from small_network import network

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import candidates, compiler, onednn
from minigraph.graph import BFLOAT16
from minigraph.passes.library.mixed_precision import autocast
from minigraph.passes.notes import Notes

CACHED = {"autotune": "off"}
EPS = 2.0**-8  # half of the distance between neighbours, relative


def conv(x, w, bias=None, **window):
    y = ops.conv2d(x, w, bias, padding=1, **window)
    return y, *mg.grad((y * y).sum(), [x, w])


# What `amp` changes, and the shapes of what it is made of.
PROGRAMS = {
    "convolution": (conv, [(2, 32, 9, 9), (32, 32, 3, 3)]),
    "with a bias": (conv, [(2, 32, 9, 9), (32, 32, 3, 3), (32,)]),
    "few channels": (conv, [(2, 3, 9, 9), (5, 3, 3, 3)]),
    "strided": (functools.partial(conv, stride=2), [(2, 16, 9, 9), (16, 16, 3, 3)]),
    "in groups": (functools.partial(conv, groups=4), [(2, 16, 9, 9), (16, 4, 3, 3)]),
    "dilated": (functools.partial(conv, dilation=2), [(2, 16, 9, 9), (16, 16, 3, 3)]),
    "one pixel": (lambda x, w: ops.conv2d(x, w), [(2, 32, 7, 7), (16, 32, 1, 1)]),
    "product": (lambda x, y: x @ y, [(33, 65), (65, 17)]),
    "of views": (lambda x, y: x.T @ y[::2], [(31, 18), (62, 7)]),
    "of batches": (lambda x, y: x @ y, [(3, 9, 70), (3, 70, 5)]),
    "linear and its gradients": (
        lambda x, w, b: mg.grad(ops.square(ops.linear(x, w, b)).sum(), [x, w, b]),
        [(16, 30), (20, 30), (20,)],
    ),
    "pooled": (
        lambda x, w: ops.max_pool2d(ops.relu(ops.conv2d(x, w)), 3, 2),
        [(2, 16, 12, 12), (32, 16, 3, 3)],
    ),
    "averaged": (
        lambda x, w: ops.avg_pool2d(ops.relu(ops.conv2d(x, w)), 2),
        [(2, 16, 12, 12), (32, 16, 3, 3)],
    ),
}


def compiled(build, xs, **options):
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    results = build(*inputs)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    return mg.comp_graph("cpu", CACHED | options).compile(inputs, results)


@needs_bfloat16
@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_float32_to_the_rounding_of_bfloat16(name, level):
    build, shapes = PROGRAMS[name]
    xs = [real(*shape, seed=i) for i, shape in enumerate(shapes)]
    small = compiled(build, xs, graph_opt_level=level, amp="bfloat16")
    assert small.report().numpy == []
    wide = compiled(build, xs, graph_opt_level=0)
    for actual, expected in zip(small(*xs), wide(*xs), strict=True):
        assert actual.dtype == np.float32
        # Operands and results are rounded, by EPS at most; the sums between them are not.
        assert np.abs(actual - expected).max() <= 8 * EPS * np.sqrt(
            np.mean(expected**2)
        ) + 2 * EPS * np.max(np.abs(expected))
        assert np.abs(actual - expected).max() > 0


class SmallMeaning(Meaning):
    """What graphs mean whose convolutions and products are in bfloat16."""

    def __init__(self, graphs):
        super().__init__(graphs)
        self.written = autocast(self.written, Notes(), "bfloat16")
        self.values = self.written(*self.args)

    @functools.cached_property
    def noise(self):
        stored = {s.size for y in self.written for s in y.specs if s.dtype == BFLOAT16}
        return noisy(self.written, self.args, stored)


@needs_bfloat16
@pytest.mark.parametrize("first", mostly_long(range(0, 48, 6), 0))
def test_random_graphs_mean_the_same_at_every_level(first):
    meaning = SmallMeaning([RandomGraph(seed) for seed in range(first, first + 6)])
    for level in (0, 2, 3):
        options = CACHED | {"graph_opt_level": level, "amp": "bfloat16"}
        values = meaning.call(meaning.compiled("cpu", options))
        meaning.check(values, f"in bfloat16 at level {level}")


@needs_bfloat16
def test_sums_are_taken_in_float32():
    """4096 ones: in bfloat16 the sum would stop at 256."""
    x, y = np.ones((2, 4096), np.float32), np.ones((4096, 3), np.float32)
    (z,) = compiled(lambda x, y: x @ y, [x, y], amp="bfloat16")(x, y)
    assert (z == 4096).all()


@needs_bfloat16
def test_nan_and_infinity_pass():
    x, w = real(2, 16, 8, 8), real(16, 16, 3, 3, seed=1)
    x[0, 3, 4, 4], x[1, 0, 1, 1] = np.nan, np.inf
    small, wide = (compiled(conv, [x, w], amp=amp)(x, w)[0] for amp in ("bfloat16", "off"))
    np.testing.assert_array_equal(np.isnan(small), np.isnan(wide))
    np.testing.assert_array_equal(np.isinf(small), np.isinf(wide))


@needs_bfloat16
def test_oneDNN_computes_in_bfloat16_and_the_arrays_between_kernels_are_small():
    net = network()
    report = (
        mg.comp_graph("cpu", CACHED | {"graph_opt_level": 3, "amp": "bfloat16"})
        .compile(net.inputs, net.loss, net.updates)
        .report()
    )
    assert {"conv2d", "conv2d_backward_weights", "matmul"} <= set(report.ops)
    assert report.numpy == []
    for algorithm in report.algorithms:
        assert "bfloat16" in algorithm.subject
        assert "bf16" in algorithm.name or "amx" in algorithm.name  # which has no float32


@needs_bfloat16
@pytest.mark.parametrize("level", mostly_long([-3, -2, -1], 1))
def test_a_negative_level_finds_no_difference(level):
    step = training(level)[0]
    for i in range(3):
        step(*batch(i))


def training(level, amp="bfloat16", rate=0.01):
    net = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * 16, 10),
    )
    rng = np.random.default_rng(0)
    for p in net.parameters():
        if p.ndim > 1:
            p.assign(rng.normal(size=p.shape).astype(np.float32) / np.sqrt(p.size / p.shape[0]))
    x, labels = mg.input("x", (32, 1, 8, 8)), mg.input("labels", (32,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters(), rate).minimize(loss), **net.updates()}
    cg = mg.comp_graph("cpu", CACHED | {"graph_opt_level": level, "amp": amp})
    return cg.compile([x, labels], loss, updates), net


def batch(i):
    rng = np.random.default_rng(i)
    labels = rng.integers(0, 10, 32)
    images = rng.normal(size=(32, 1, 8, 8)) * 0.3
    images[np.arange(32), 0, labels // 5 * 4, labels % 5] += 3  # where a class is bright
    return images.astype(np.float32), labels


@needs_bfloat16
def test_a_training_follows_that_of_float32_and_parameters_stay_float32():
    losses = {}
    for level, amp in ((3, "off"), (3, "bfloat16"), (0, "bfloat16")):
        step, net = training(level, amp)
        losses[level, amp] = np.array([float(step(*batch(i))) for i in range(30)])
        assert {p.dtype.name for p in net.parameters()} == {"float32"}
        assert step.report().numpy == []
    expected = losses.pop((3, "off"))
    assert expected[-1] < 0.2 * expected[0]
    for actual in losses.values():
        assert np.abs(actual - expected).max() <= 0.05 * expected[0]


@needs_bfloat16
def test_every_candidate_computes_the_convolution_and_keys_name_the_type():
    x, w = mg.input("x", (2, 32, 16, 16), BFLOAT16), mg.input("w", (32, 32, 3, 3), BFLOAT16)
    problems = candidates.CpuProblems(1, on_disk=False)
    y = ops.conv2d(x, w, padding=1)
    problem = problems.tunable(y, [x.spec.strides, w.spec.strides]).problem
    assert "bfloat16[2, 32, 16, 16]" in problem.subject
    names = {candidate.name for candidate in problem.candidates(None)}
    assert any("bf16" in name for name in names)
    wide = ops.conv2d(mg.input("x", x.shape), mg.input("w", w.shape), padding=1)
    assert "bf16" not in str([c.name for c in problems.tunable(wide, []).problem.candidates(None)])


# ---------------------------------------------------------------- processors that do not


def refusal(shape=(2, 2), **options):
    x = mg.input("x", shape)
    with pytest.raises(mg.DeviceError) as error:
        mg.comp_graph("cpu", options).compile([x], x @ x.T)
    assert "\n" not in str(error.value)
    return str(error.value)


@needs_onednn
def test_a_processor_without_the_instructions_says_what_it_lacks_and_what_works(monkeypatch):
    monkeypatch.setattr(onednn, "dtypes", lambda: frozenset((onednn.F32,)))
    message = refusal(amp="bfloat16")
    assert message == refusal((None, 2), amp="bfloat16")
    assert "neither AVX512_BF16 nor AMX" in message and 'amp="off"' in message


def test_float16_is_refused_with_what_there_is():
    assert '"bfloat16" and "off"' in refusal(amp="float16")


def test_bfloat16_arrays_are_computed_in_float32_there(monkeypatch):
    monkeypatch.setattr(onednn, "dtypes", lambda: frozenset((onednn.F32,)))
    x = real(8, 8).astype(BFLOAT16)
    step = compiled(lambda x: x @ x, [x])
    assert step.report().numpy == [] or compiler.compiler() is None
    expected = (x.astype(np.float32) @ x.astype(np.float32)).astype(BFLOAT16)
    assert (
        np.abs((step(x)[0] - expected).astype(np.float32)).max()
        <= 2 * EPS * np.abs(expected.astype(np.float32)).max()
    )
