"""Device "cuda" as a whole, without one: its kernels run on the CPU, in the order that it asks for.

What has no kernel here, cuDNN's part, is done by NumPy between two graphs.
"""

import math

import cuda_on_cpu
import numpy as np
import pytest
from cuda_device import on_host
from meaning import Meaning
from needs import needs_gpp
from random_graphs import RandomGraph

import minigraph as mg
from minigraph import nn, ops, optim

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
pytest.importorskip("cudnn")
import cublas_library
from cuda_stand_in import DeviceArray, StandIn, open_instead
from driver_log import entries
from small_functions import real

from minigraph import options
from minigraph.devices.cuda import calls, cublas_kernel
from minigraph.devices.cuda import device as device_module
from minigraph.devices.cuda.kernels import cuda_kernel
from minigraph.graph import as_dtype
from minigraph.inspect.page import from_file
from minigraph.ops.layout import Reorder

pytestmark = needs_gpp
PRODUCT = cublas_kernel.product  # which a stand-in hides


class Device(StandIn):
    """A stand-in whose kernels are those that were generated, built with g++."""

    def launch(self, function, grid, block, stream, arguments):
        def run():
            cuda_on_cpu.run_kernel(self.kernels[function], arguments.words, grid, block)

        self._do(stream, run, "launch", function)


@pytest.fixture
def device(monkeypatch, build_cuda):
    device = Device()

    def load(sources, driver, on_disk):
        driver.kernels |= build_cuda(sources)
        return {source.name: source.name for source in sources}

    open_instead(monkeypatch, device, load)
    return device


def network():
    nn.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)),
    )


def trained(name, level, steps=3):
    """Return the losses of some steps and the parameters after them."""
    net = network()
    x, labels = mg.input("x", (4, 3, 8, 8)), mg.input("labels", (4,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    adam = optim.Adam(net.parameters(), lr=1e-2)
    updates = {**adam.minimize(loss), **net.updates()}
    cg = mg.comp_graph(name, {"graph_opt_level": level, "autotune": "off"})
    step = cg.compile([x, labels], loss, updates=updates)
    rng = np.random.default_rng(1)
    batch = rng.normal(size=x.shape).astype(np.float32), rng.integers(0, 10, 4)
    losses = [on_host(step(*batch)) for _ in range(steps)]
    return np.array(losses), [p.numpy() for p in net.parameters()], step


@pytest.fixture(scope="module")
def trained_on_the_cpu():
    return trained("cpu", 0)


@pytest.mark.parametrize("level", [0, 2, 3])
def test_a_network_trains_as_on_the_cpu(device, trained_on_the_cpu, level):
    losses, parameters, step = trained("cuda", level)
    expected, wanted, _ = trained_on_the_cpu
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for actual, value in zip(parameters, wanted, strict=True):
        assert np.abs(actual - value).mean() < 1e-3
    assert step.report().device == "cuda:0"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64", "uint8"])
def test_arrays_of_the_device_come_in_any_dtype_and_with_gaps(device, dtype):
    x = mg.input("x", (2, 3, 5))
    step = mg.comp_graph("cuda").compile([x], x * 2)
    values = np.arange(180).reshape(5, 6, 6).astype(as_dtype(dtype))
    for value in (
        values[:2, :3, :5],
        values.T[1::-1, :3],
        values[::2, ::2, 1:][:2],
        values[0, 0, 0],
    ):
        value = np.broadcast_to(value, x.shape)
        (result,) = [on_host(step(DeviceArray(value)))]
        np.testing.assert_array_equal(result, value.astype(np.float32) * 2)


def test_a_number_that_does_not_fit_into_an_inputs_dtype_is_named(device):
    x = mg.input("x", (300,))
    step = mg.comp_graph("cuda").compile([x], x * 2)
    value = np.full(300, np.inf)
    value[7] = np.nan
    np.testing.assert_array_equal(on_host(step(DeviceArray(value))), value * 2)
    value[200] = 1e300
    with pytest.raises(mg.DTypeError, match=r"1e\+300"):
        step(DeviceArray(value))


@pytest.mark.parametrize("level", [0, 3])
def test_attention_by_a_library_gives_what_it_does_on_the_cpu(device, monkeypatch, level):
    """Products of heads, and with an activation, and their gradients."""
    monkeypatch.setattr(cublas_kernel, "product", PRODUCT)
    library = cublas_library.instead(monkeypatch, workspace=100)
    x = mg.input("x", (3, 6, 4, 8))
    w, v, b = (mg.Parameter(real(*s, seed=i), "w") for i, s in enumerate([(8, 8), (4, 1, 8), (8,)]))
    heads = ops.permute_dims(ops.tanh(ops.linear(x, w, b)), (0, 2, 1, 3))
    scores = ops.softmax(heads @ ops.permute_dims(heads, (0, 1, 3, 2)))
    y = ops.permute_dims(scores @ (heads * v), (0, 2, 1, 3))
    results = [y, *mg.grad((y * y[:1]).sum(), [w, v, b])]
    value = real(*x.shape, seed=5)
    options = {"graph_opt_level": level, "bulk": False, "autotune": "off"}
    step, expected = (
        mg.comp_graph(name, options).compile([x], results) for name in ("cuda", "cpu")
    )
    products = step.report().makers["cublas"]
    assert products > 4 and not step.report().numpy
    for actual, wanted in zip(map(on_host, step(value)), expected(value), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
    assert len(library.calls) == products


def test_functions_are_drawn_whoever_made_their_kernels(device, tmp_path):
    *_, step = trained("cuda", 3, steps=1)
    step.to_dot(tmp_path / "step.dot")
    step.to_html(tmp_path / "step.html")
    assert (tmp_path / "step.dot").read_text().count("->") > len(step.report().steps)
    (described,) = from_file(tmp_path / "step.html")
    makers = [step.kernel.split(" ")[0] for step in described.steps]
    assert makers.count("cuda") == step.report().makers["cuda"] > 0


@pytest.mark.parametrize("direct", [False, True], ids=["copied", "where the arrays are"])
@pytest.mark.parametrize("level", [0, 3])
def test_random_graphs_compute_their_meaning(device, monkeypatch, level, direct):
    meaning = Meaning([RandomGraph(seed) for seed in range(16)])
    if direct:
        monkeypatch.setattr(calls, "LAUNCH_SECONDS", 0)
        meaning.arrays = [DeviceArray(np.array(x)) for x in meaning.arrays]
    results = meaning.call(meaning.compiled("cuda", {"graph_opt_level": level}))
    meaning.check([*map(on_host, results)], f"at level {level}")


def test_a_direct_function_reads_and_writes_arrays_of_the_device_that_are_contiguous(
    device, monkeypatch
):
    monkeypatch.setattr(calls, "LAUNCH_SECONDS", 0)
    shape = (16, 96)
    x, y = (mg.input(name, shape) for name in "xy")
    step = mg.comp_graph("cuda", {"graph_opt_level": 3}).compile([x, y], ops.tanh(x) * y)
    rows = np.random.default_rng(0).normal(size=shape[::-1]).astype(np.float32)
    turned, straight = DeviceArray(rows.T), DeviceArray(np.ascontiguousarray(rows.T))
    for first, second in ((straight, straight), (turned, straight), (straight, rows.T)):
        device.log.clear()
        np.testing.assert_allclose(
            step(first, second).array, np.tanh(rows.T) * rows.T, rtol=1e-5, atol=1e-6
        )
        copies = entries(device.log, "copy")
        assert len(copies) == isinstance(second, np.ndarray)  # from its landing place
    assert step.report().launches == 1 and device.graphs == []


def test_rows_are_taken_wherever_their_table_begins(device):
    x, places = mg.input("x", (65,)), mg.input("places", (3,), "int64")
    cg = mg.comp_graph("cuda", {"autotune": "off"})
    values, at = np.arange(65, dtype=np.float32), np.array([3, 0, -1])
    for first in (0, 1):
        rows = ops.reshape(x[first : first + 64], (4, 16))
        step = cg.compile([x, places], ops.take(rows, places, 0))
        expected = values[first : first + 64].reshape(4, 16)[at]
        np.testing.assert_array_equal(on_host(step(values, at)), expected)


def test_a_candidate_runs_alone_on_arrays_of_the_device(device):
    node = Reorder(3)(mg.input("x", (2, 3, 4, 5)))
    x, y, scratch = (
        DeviceArray(np.arange(math.prod(shape), dtype=np.float32).reshape(shape))
        for shape in (node.inputs[0].shape, node.shape, (1,))
    )
    backend = device_module.CudaBackend(0, options.resolve({}), on_disk=False)
    run = backend._runner(cuda_kernel(node, [node.inputs[0].spec.strides]))
    with device.current():
        run([x], [y], scratch)
    np.testing.assert_array_equal(y.array, node.op.forward(x.array))


def test_functions_on_both_devices_see_the_value_that_a_parameter_has(device):
    w = mg.Parameter(np.zeros(3, np.float32), "w")
    both = [mg.comp_graph(n).compile([], w * 1, updates={w: w + 1}) for n in ("cuda", "cpu")]
    for _ in range(3):
        for step in both:
            step()
    np.testing.assert_array_equal(w.numpy(), np.full(3, 6, np.float32))


def test_nvrtc_is_loaded_before_cudnn_which_looks_for_it_by_name_only(monkeypatch):
    order = []
    monkeypatch.setattr(device_module, "Driver", lambda ordinal: StandIn())
    monkeypatch.setattr(device_module.nvrtc, "nvrtc_version", lambda: order.append("nvrtc"))
    monkeypatch.setattr(device_module.cublas, "handle", lambda ordinal: None)
    monkeypatch.setattr(device_module.cudnn, "create_handle", lambda: order.append("handle"))
    device_module._open_device.__wrapped__(0)
    assert order == ["nvrtc", "handle"]
