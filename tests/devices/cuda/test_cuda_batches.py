"""Batches that a loader copies to a CUDA device; a stand-in for the driver logs its calls."""

from collections import namedtuple

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn
from minigraph.data import DataLoader
from minigraph.training import evaluate

pytest.importorskip("cupy")
pytest.importorskip("cuda.bindings.driver")
from cuda_stand_in import DeviceArray, StandIn, by_meaning

from minigraph.devices.cuda import staging

IMAGES = np.arange(60, dtype=np.float32).reshape(10, 6)


@pytest.fixture
def driver(monkeypatch):
    driver = StandIn()
    by_meaning(monkeypatch, driver)
    return driver


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_arrays_of_the_device_that_functions_take(driver, workers):
    loader = DataLoader((IMAGES, np.arange(10)), 4, workers=workers, device="cuda")
    x = mg.input("x", (None, 6))
    double = mg.comp_graph("cuda").compile([x], x * 2)
    for _ in range(2):
        begin = 0
        for images, labels in loader:
            assert type(images) is type(labels) is DeviceArray
            end = begin + len(labels.get())
            np.testing.assert_array_equal(labels.get(), np.arange(begin, end))
            np.testing.assert_array_equal(double(images).get(), 2 * IMAGES[begin:end])
            begin = end
        assert begin == 10


def test_batches_keep_their_structure_and_what_is_no_array_of_numbers(driver):
    pair = namedtuple("pair", "mask weights")
    image = np.asfortranarray(IMAGES)
    batch = {"pair": pair(IMAGES > 3, [IMAGES[0, 0], image]), "name": np.array(["a"]), "n": 3}
    loader = DataLoader(IMAGES, 10, batch_transform=lambda _: batch, device="cuda")
    (found,) = loader
    mask, (scalar, weights) = found["pair"]
    assert type(found["pair"]) is pair and found["name"] is batch["name"] and found["n"] == 3
    assert scalar == batch["pair"].weights[0]
    np.testing.assert_array_equal(mask.get(), IMAGES > 3)
    np.testing.assert_array_equal(weights.get(), IMAGES)
    assert mask.dtype == np.bool_ and weights.flags.c_contiguous


def test_the_memory_of_a_dropped_batch_is_used_again_after_the_work_of_the_callers_stream(driver):
    for batch in DataLoader(IMAGES, 1, device="cuda"):
        assert batch.get().shape == (1, 6)
    assert sum("allocate" in entry for entry in driver.log) <= 3
    last = max(i for i, entry in enumerate(driver.log) if entry.startswith("wait copies"))
    event = driver.log[last].split()[2]
    assert f"record {event} caller" in driver.log[:last]


def test_batches_that_the_caller_keeps_stay_as_they_are(driver):
    batches = list(DataLoader(IMAGES, 1, workers=2, prefetch=3, device="cuda"))
    np.testing.assert_array_equal(np.concatenate([b.get() for b in batches]), IMAGES)


def test_a_large_array_is_copied_in_pieces(driver, monkeypatch):
    monkeypatch.setattr(staging, "PIECE_BYTES", 100)
    (batch,) = DataLoader(IMAGES, 10, device="cuda")
    np.testing.assert_array_equal(batch.get(), IMAGES)
    assert driver.log.count("upload copies") == 3


def test_an_error_reaches_the_caller_and_a_loop_may_end_early(driver):
    def refuse(example):
        raise ValueError("no such image")

    with pytest.raises(ValueError, match="no such image"):
        list(DataLoader(IMAGES, 4, transform=refuse, device="cuda"))
    for _ in DataLoader(IMAGES, 2, workers=1, device="cuda"):
        break


def test_a_network_is_evaluated_on_batches_of_the_device(driver):
    net = nn.Linear(6, 3)
    labels = np.arange(10) % 3
    expected = evaluate(net, DataLoader((IMAGES, labels), 4))
    cg = mg.comp_graph("cuda")
    found = evaluate(net, DataLoader((IMAGES, labels), 4, device="cuda"), cg=cg)
    assert found == pytest.approx(expected)
    doubles = DataLoader((IMAGES.astype(np.float64), labels), 4, device="cuda")
    assert evaluate(net, doubles, cg=cg) == pytest.approx(expected)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_devices_that_use_the_hosts_memory_get_numpys_arrays(device):
    batches = list(DataLoader(IMAGES, 4, device=device))
    assert all(type(batch) is np.ndarray for batch in batches)
    np.testing.assert_array_equal(np.concatenate(batches), IMAGES)


def test_an_unknown_device_is_refused():
    with pytest.raises(mg.DeviceError, match="there is no device 'gpu'"):
        DataLoader(IMAGES, 4, device="gpu")
