"""Profiles: medians by layer, op and kernel, the roofline, comparisons and traces."""

import json
from collections import Counter

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.inspect import roofline
from minigraph.inspect.profile import LAYERS, THREADS, Profile
from minigraph.inspect.record import KernelTime
from minigraph.inspect.roofline import Speeds


def kernel(name, seconds, layer, start=0.0, **more):
    return KernelTime(name, "c", "float32[2]", "at a.py:1", start, seconds, layer, **more)


TWO = Profile(
    [
        kernel("conv2d", 3.0, "stem.conv", bytes=10, flops=400),
        kernel("add", 1.0, "stem", 3.0, bytes=50, flops=10, threads=2, memory=64),
        kernel("conv2d", 2.0, "a.py:7", 4.0, bytes=10, flops=100),
    ],
    calls=3,
    speeds=Speeds(bandwidth=100.0, peak=200.0),
)


def test_costs_are_summed_by_layer_op_and_kernel_the_slowest_first():
    assert [(c.name, c.seconds) for c in TWO.by_layer] == [
        ("stem.conv", 3.0),
        ("a.py:7", 2.0),
        ("stem", 1.0),
    ]
    assert [(c.name, c.kernels, c.seconds) for c in TWO.by_op] == [
        ("conv2d", 2, 5.0),
        ("add", 1, 1.0),
    ]
    assert [c.name for c in TWO.by_kernel] == ["conv2d by c", "add by c"]
    assert TWO.by_op[0].flops == 500 and TWO.by_op[0].share == pytest.approx(5 / 6)


def test_the_roofline_is_the_longer_of_moving_and_computing_of_each_kernel():
    shares = {cost.name: cost.roofline for cost in TWO.by_op}
    assert shares == {"conv2d": pytest.approx((2.0 + 0.5) / 5), "add": pytest.approx(0.5)}
    assert all(cost.roofline is None for cost in Profile(TWO.kernels).by_op)


def test_a_profile_prints_bounded_tables():
    many = Profile([kernel("add", 1.0, f"layer{i}") for i in range(100)])
    assert "85 more take 85000.000 ms" in str(many)
    assert len(str(many).splitlines()) < 25
    assert repr(TWO) == str(TWO) and "median of 3 calls" in str(TWO)
    assert TWO._repr_html_().startswith("<pre>")
    assert json.loads(json.dumps(TWO.to_dict()))["by_op"][1]["name"] == "add"


def events(tmp_path, profile, group):
    profile.to_chrome_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    return [event for event in trace if event["pid"] == group]


def test_a_trace_has_the_kernels_on_each_thread_and_the_memory(tmp_path):
    trace = events(tmp_path, TWO, THREADS)
    on = [(e["name"], e["tid"]) for e in trace if e["ph"] == "X"]
    assert on == [("conv2d", 0), ("add", 0), ("add", 1), ("conv2d", 0)]
    assert [e["args"]["bytes"] for e in trace if e["ph"] == "C"] == [0, 64, 0]
    assert [e["args"]["name"] for e in trace if e["ph"] == "M"] == [
        "kernels",
        "thread 0",
        "thread 1",
    ]


def test_a_trace_has_layers_inside_of_layers(tmp_path):
    slices = [e for e in events(tmp_path, TWO, LAYERS) if e["ph"] == "X"]
    assert {(e["name"], e["tid"], e["ts"], e["dur"]) for e in slices} == {
        ("stem", 0, 0.0, 4e6),
        ("stem.conv", 1, 0.0, 3e6),
        ("a.py:7", 0, 4e6, 2e6),
    }


def training(level=3):
    x = mg.input("x", (32, 16))
    net = nn.Linear(16, 4)
    loss = ops.dropout(net(x), 0.5).sum()
    (gradient,) = mg.grad(loss, [net.weight])
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off"})
    return cg.compile([x], loss, {net.weight: net.weight - gradient}), net


@pytest.mark.parametrize("level", [0, 3, -3])
def test_a_profile_of_many_calls_changes_what_one_call_changes(level):
    x = np.ones((32, 16), "float32")
    (step, net), (other, same) = training(level), training(level)
    same.load_state_dict(net.state_dict())
    profile = step.profile(x, calls=3)
    other(x)
    assert profile.calls == 3 and step.calls == other.calls == 1
    np.testing.assert_array_equal(net.weight.numpy(), same.weight.numpy())
    assert Counter(k.name for k in profile.kernels)["matmul"] == 2
    assert profile.speeds.bandwidth > 0 and profile.speeds.peak > 0


def test_a_loop_counts_the_work_of_all_its_steps():
    x, h = mg.input("x", (5, 8, 8)), mg.input("h", (8, 8))
    _, ys = ops.scan(lambda c, v: (c, ops.matmul(c, v)), h, x)
    step = mg.comp_graph("cpu", {"autotune": "off"}).compile([x, h], ys)
    profile = step.profile(np.ones((5, 8, 8)), np.ones((8, 8)), calls=1)
    assert sum(k.flops for k in profile.kernels if k.name == "scan") >= 5 * 2 * 8**3


def test_a_function_of_any_size_is_profiled_for_the_size_of_the_call():
    x = mg.input("x", (None, 3))
    step = mg.comp_graph("cpu", {"autotune": "off"}).compile([x], ops.exp(x))
    assert "float32[5,3]" in step.profile(np.ones((5, 3)), calls=2).kernels[0].result


def test_the_slower_of_moving_and_computing_is_the_estimate_of_a_step():
    speeds = Speeds(1e9, 1e12)
    assert speeds.estimate(2_000_000, 8) == pytest.approx(2e-3)
    assert speeds.estimate(8, 3_000_000_000) == pytest.approx(3e-3)


def test_a_device_is_measured_once():
    x = mg.input("x", (8, 8))
    value = np.ones((8, 8), np.float32)
    step, other = (mg.comp_graph("cpu").compile([x], y) for y in (x @ x, x @ x + 1))
    first = step.profile(value, calls=2).speeds
    assert first.bandwidth > 1e8 and first.peak > 1e8
    assert other.profile(value, calls=2).speeds is first


def test_the_peak_is_that_of_the_narrowest_products(monkeypatch):
    multiplied = []

    def seconds(backend, result):
        multiplied.append(result.dtype.name)
        return 1.0

    monkeypatch.setattr(roofline, "_speeds", {})
    monkeypatch.setattr(roofline, "_seconds", seconds)
    x = mg.input("x", (8, 8), "bfloat16")
    y = mg.input("y", (8, 8))
    step = mg.comp_graph("cpu").compile([x, y], [x @ x, y @ y])
    step.profile(np.ones((8, 8), "float32"), np.ones((8, 8), "float32"), calls=2)
    assert multiplied == ["float32", "bfloat16"]
