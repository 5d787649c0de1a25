"""What only a GPU can show: `pytest -m cuda`.  Skipped where there is none."""

import os
import subprocess
import sys

import numpy as np
import pytest
from random_graphs import RandomGraph
from samples import SAMPLES, is_random
from test_levels import Meaning

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import Graph

pytestmark = pytest.mark.cuda
LEVELS = [0, 1, 2, 3]


@pytest.fixture(scope="module", autouse=True)
def device():
    try:
        mg.comp_graph("cuda")
    except mg.DeviceError as error:
        pytest.skip(str(error))


def on_host(array):
    return array if isinstance(array, np.ndarray) else array.get()


def close(found, expected, tolerance):
    """Equal to a tolerance of the largest element; infinities and NaN at the same places."""
    assert found.shape == expected.shape and found.dtype == expected.dtype
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
        return
    wide, wanted = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(wide[~finite], wanted[~finite])
    if finite.any():
        limit = tolerance * max(np.abs(wanted[finite]).max(), 1e-30)
        assert np.abs(wide[finite] - wanted[finite]).max() <= limit


# ---------------------------------------------------------------- ops


@pytest.mark.parametrize("name", [n for n, (op, _) in SAMPLES.items() if not is_random(op)])
def test_every_op_computes_its_meaning(name):
    op, xs = SAMPLES[name]
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    results = op.results(*inputs)
    cg = mg.comp_graph("cuda", {"autotune": "off"})
    found = cg.compile(inputs, list(results))(*xs)
    expected = Graph(tuple(inputs), tuple(results))(*xs)
    for y, wanted in zip(map(on_host, found), expected, strict=True):
        close(y, wanted, {2: 2e-2, 4: 1e-4, 8: 1e-10}.get(wanted.dtype.itemsize, 0))


def test_random_numbers_are_those_of_the_cpu():
    x = mg.input("x", (1000, 33))
    y = ops.dropout(x, 0.5) + ops.random_uniform((1000, 33))
    value = np.ones((1000, 33), np.float32)
    found = [mg.comp_graph(name, {"seed": 3}).compile([x], y) for name in ("cuda", "cpu")]
    for _ in range(3):
        one, two = (on_host(step(value)) for step in found)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("level", LEVELS)
def test_random_graphs_compute_their_meaning_at_every_level(level):
    for first in range(0, 90, 30):
        meaning = Meaning([RandomGraph(seed) for seed in range(first, first + 30)])
        found = meaning.call("cuda", {"graph_opt_level": level})
        meaning.check(list(map(on_host, found)), f"on the GPU at level {level}")


# ---------------------------------------------------------------- training


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return ops.relu(self.norm(self.conv(x)) + x)


def network():
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        Block(32),
        Block(32),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    rng = np.random.default_rng(0)
    for name, parameter in net.named_parameters():
        if parameter.ndim > 1:
            scale = (2 / np.prod(parameter.shape[1:])) ** 0.5
            parameter.assign((rng.normal(size=parameter.shape) * scale).astype(np.float32))
        elif name.endswith("bias"):
            parameter.assign(np.zeros(parameter.shape, np.float32))
    return net


def losses(device, steps=20, **options):
    net = network()
    x, labels = mg.input("x", (16, 3, 16, 16)), mg.input("labels", (16,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    adam = optim.Adam(net.parameters(), lr=1e-4)
    updates = {**adam.minimize(loss), **net.updates()}
    step = mg.comp_graph(device, options).compile([x, labels], loss, updates=updates)
    rng = np.random.default_rng(1)
    batch = rng.normal(size=x.shape).astype(np.float32), rng.integers(0, 10, 16)
    return np.array([float(on_host(step(*batch))) for _ in range(steps)]), step


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("autotune", ["off", "tune"])
def test_losses_follow_those_of_the_cpu(level, autotune):
    found, step = losses("cuda", graph_opt_level=level, autotune=autotune)
    expected, _ = losses("cpu", graph_opt_level=0)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    if level == 3:
        assert (step.report().launches, step.report().syncs) == (1, 0)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"precision": "tf32"}, 1e-2), ({"amp": "bfloat16"}, 5e-2), ({"amp": "float16"}, 2e-2)],
)
def test_small_types_lead_to_nearly_the_same_losses(options, tolerance):
    found, _ = losses("cuda", graph_opt_level=3, **options)
    expected, _ = losses("cpu", graph_opt_level=0)
    np.testing.assert_allclose(found, expected, rtol=tolerance)


def test_a_negative_level_finds_no_difference():
    losses("cuda", steps=3, graph_opt_level=-3)


def test_without_a_graph_the_numbers_are_the_same():
    one, _ = losses("cuda", graph_opt_level=3, autotune="cached")
    other, step = losses("cuda", graph_opt_level=3, autotune="cached", bulk=False)
    np.testing.assert_allclose(one, other, rtol=1e-5)
    assert step.report().launches > 1


# ---------------------------------------------------------------- arrays


def test_arrays_of_cupy_come_in_and_go_out_without_the_host():
    cupy = pytest.importorskip("cupy")
    x = mg.input("x", (1000,))
    step = mg.comp_graph("cuda").compile([x], x * 2 + 1)
    value = cupy.arange(1000, dtype=cupy.float32)
    first, second = step(value), step(value + 1)
    assert isinstance(first, cupy.ndarray)
    np.testing.assert_array_equal(first.get(), np.arange(1000, dtype=np.float32) * 2 + 1)
    np.testing.assert_array_equal(second.get(), first.get() + 2)


def test_a_label_out_of_range_is_an_error_and_changes_nothing():
    x, labels = mg.input("x", (2, 3)), mg.input("labels", (2,), "int64")
    w = mg.Parameter(np.ones((3,), np.float32), "w")
    loss = ops.cross_entropy(x * w, labels)
    step = mg.comp_graph("cuda").compile([x, labels], loss, updates={w: w + 1})
    with pytest.raises(mg.GraphError, match="3"):
        step(np.zeros((2, 3), np.float32), np.array([0, 3]))
    np.testing.assert_array_equal(w.numpy(), np.ones(3, np.float32))
    step(np.zeros((2, 3), np.float32), np.array([0, 2]))
    np.testing.assert_array_equal(w.numpy(), np.full(3, 2, np.float32))


# ---------------------------------------------------------------- caches

SECOND = """
import minigraph as mg
from test_cuda_device import losses
losses("cuda", steps=2, graph_opt_level=3)
print(mg.autotune.stats().measurements, mg.jit.stats().compilations)
"""


def test_a_second_process_tunes_and_compiles_nothing(tmp_path):
    env = {**os.environ, "MINIGRAPH_CACHE_DIR": str(tmp_path)}
    env["PYTHONPATH"] = os.pathsep.join([os.path.dirname(__file__), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", SECOND]
    first, second = (
        subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    )
    assert int(first[0]) > 0 and int(first[1]) > 0
    assert second == ["0", "0"]
