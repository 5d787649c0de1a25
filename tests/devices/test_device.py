"""The table of devices, and what a device gets by default."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import toy_device
from small_functions import parameter

import minigraph as mg
from minigraph import ops, optim
from minigraph.debug.fault_localization import check_steps
from minigraph.devices import factory

PACKAGE = Path(mg.__file__).parent


def training_step(level):
    w = parameter(3, 4)
    x, labels = mg.input("x", (2, 3)), mg.input("labels", (2,), "int64")
    loss = ops.cross_entropy(x @ w, labels)
    cg = mg.comp_graph("toy", {"graph_opt_level": level})
    return cg.compile([x, labels], loss, optim.Adam([w]).minimize(loss)), w


def test_a_device_has_a_row_in_one_table_and_no_other_code_asks_for_its_name():
    assert {"cpu", "cuda", "reference"} <= factory.DEVICES.keys()
    asks = re.compile(r"device\w*\.startswith\(")
    assert not [path for path in PACKAGE.rglob("*.py") if asks.search(path.read_text())]


@pytest.mark.parametrize(
    ("device", "kind", "number"), [("cuda", "cuda", None), ("cuda:12", "cuda", 12)]
)
def test_a_name_is_a_kind_and_perhaps_a_number(device, kind, number):
    assert factory.split(device) == (kind, number)


def test_a_step_uploads_its_inputs_and_downloads_its_results_alone():
    step, _ = training_step(3)
    step(np.ones((2, 3)), [0, 1])
    toy_device.counts.clear()
    step(np.ones((2, 3)), [0, 1])
    assert toy_device.counts["uploaded"] == 2 * 3 * 4 + 2 * 8
    assert toy_device.counts["downloaded"] == 4
    assert toy_device.counts["launched"] == len(step.report().steps)


def test_the_host_and_the_device_see_each_others_new_values_of_a_parameter():
    step, w = training_step(3)
    other, same = training_step(0)
    for _ in range(2):
        w.assign(w.numpy() + 1)
        same.assign(same.numpy() + 1)
        losses = [each(np.ones((2, 3)), [0, 1]) for each in (step, other)]
        np.testing.assert_allclose(*losses, rtol=1e-6)
        np.testing.assert_allclose(w.numpy(), same.numpy(), rtol=1e-6)


def test_an_input_that_does_not_fit_changes_no_parameter():
    step, w = training_step(2)
    before = w.numpy()
    with pytest.raises(mg.GraphError):
        step(np.ones((2, 3)), [0, 9])
    np.testing.assert_array_equal(w.numpy(), before)
    assert step.calls == 0


def test_a_step_runs_alone_on_arrays_of_the_host(monkeypatch):
    x = mg.input("x", (5,))
    function = mg.comp_graph("toy", {"graph_opt_level": 0}).compile([x], ops.tanh(x) * 2)
    check = partial(check_steps, function._program, function._backend, {x: np.ones(5, "f4")})
    assert isinstance(check(), list)
    launch = toy_device.ToyExecutor.launch

    def wrong(executor, step):
        timing = launch(executor, step)
        executor.view(step.outputs[0])[...] += step.node.op.name == "tanh"
        return timing

    monkeypatch.setattr(toy_device.ToyExecutor, "launch", wrong)
    step, _ = check()
    assert step.node.op.name == "tanh"


def test_nothing_of_another_memory_can_be_inspected():
    with pytest.raises(mg.DeviceError, match="memory of the host"):
        x = mg.input("x", (2,))
        mg.comp_graph("toy", {"debug.check_finite": True}).compile([x], x + 1)


def test_a_device_whose_packages_are_missing_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setitem(factory.DEVICES, "vulkan", factory.DeviceRow("no_such_module", "Backend"))
    with pytest.raises(mg.DeviceError, match="'vulkan' cannot be opened: VULKAN needs packages"):
        mg.comp_graph("vulkan")
