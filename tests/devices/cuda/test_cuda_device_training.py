"""Training on a GPU: `pytest -m cuda`.  Skipped where there is none."""

import gc

import cuda_device
import example_networks
import numpy as np
import pytest
from cuda_device import batch, losses, require, training

import minigraph as mg
from minigraph.data import DataLoader

pytestmark = pytest.mark.cuda
LEVELS = [0, 1, 2, 3]


@pytest.fixture(scope="module")
def of_the_cpu():
    """The losses of 20 steps."""
    return losses("cpu", graph_opt_level=0)[0]


@pytest.mark.parametrize("level", LEVELS)
def test_losses_follow_those_of_the_cpu(level, of_the_cpu):
    actual, step = losses("cuda", graph_opt_level=level, autotune="off")
    np.testing.assert_allclose(actual, of_the_cpu, rtol=1e-3)
    assert (step.report().launches, step.report().syncs) == (1, 0)


@pytest.mark.parametrize("level", [2, 3])
def test_losses_of_a_tuned_step_follow_those_of_the_cpu(level, of_the_cpu):
    actual, step = losses("cuda", graph_opt_level=level, autotune="tune", budget=15.0)
    np.testing.assert_allclose(actual, of_the_cpu, rtol=1e-3)
    assert (step.report().launches, step.report().syncs) == (1, 0)


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [({"precision": "tf32"}, 1e-2), ({"amp": "bfloat16"}, 5e-2), ({"amp": "float16"}, 2e-2)],
)
def test_small_types_lead_to_nearly_the_same_losses(options, tolerance, of_the_cpu):
    actual, step = losses("cuda", graph_opt_level=3, autotune="off", **options)
    np.testing.assert_allclose(actual, of_the_cpu, rtol=tolerance)
    assert (step.report().launches, step.report().syncs) == (1, 0)


def test_a_negative_level_finds_no_difference():
    losses("cuda", steps=3, graph_opt_level=-3, autotune="off")


def test_without_a_graph_the_numbers_are_the_same():
    one, _ = losses("cuda", graph_opt_level=3, autotune="off")
    other, step = losses("cuda", graph_opt_level=3, autotune="off", bulk=False)
    np.testing.assert_allclose(one, other, rtol=1e-5)
    assert step.report().launches > 1


@pytest.mark.parametrize("workers", [0, 4])
def test_a_batch_stays_as_it_is_until_the_device_has_read_it(workers):
    """The device reads a batch long after the call, and the caller drops it at once."""
    side = cuda_device.SIDE
    examples = np.random.default_rng(0).normal(size=(64, 256 * side)).astype(np.float32)
    x, slow = mg.input("x", (4, 256 * side)), mg.Parameter(np.eye(side, dtype=np.float32))
    power = slow
    for _ in range(8):
        power = power @ slow
    sums = mg.comp_graph("cuda", {"graph_opt_level": 1}).compile([x], (x + power[0, 1]).sum(axis=1))
    loader = DataLoader(examples, 4, workers=workers, device="cuda")
    results = [sums(batch) for batch in loader]
    found = np.concatenate([result.get() for result in results])
    np.testing.assert_allclose(found, examples.sum(axis=1, dtype=np.float64), rtol=1e-3, atol=1)


def test_a_profile_tells_of_every_step():
    step = training("cuda", graph_opt_level=3, autotune="off")
    first = step.profile(*batch())
    assert len(first.kernels) == len(step.report().steps)
    assert all(kernel.seconds > 0 for kernel in first.kernels)


@pytest.mark.parametrize("level", [0, 3])
def test_a_hundred_steps_take_no_more_memory_than_three(level):
    driver = pytest.importorskip("minigraph.devices.cuda.device").open_device(0)[0]
    cupy = pytest.importorskip("cupy")
    step = training("cuda", graph_opt_level=level, autotune="off")

    def held():
        gc.collect()
        with driver.current():
            return cupy.get_default_memory_pool().used_bytes(), driver.free_bytes()

    for _ in range(3):
        step(*batch())
    used, free = held()
    taken = []
    for _ in range(5):
        for _ in range(20):
            step(*batch())
        after, left = held()
        assert after <= used
        taken.append(free - left)
        free = left
    assert min(taken) <= 1 << 20  # other processes may take some of the device meanwhile


# ---------------------------------------------------------------- the networks of the examples

EXAMPLES = {
    "alexnet": (
        lambda n: example_networks.ALEXNET.AlexNet(n, dropout=0.0),
        example_networks.torch_alexnet,
        3e-5,
    ),
    "resnet18": (example_networks.RESNET.resnet18, example_networks.torch_resnet18, 1e-5),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_losses_of_the_examples_follow_pytorchs(name, monkeypatch):
    monkeypatch.setenv("MINIGRAPH_DEVICE", "cuda")
    monkeypatch.setenv("MINIGRAPH_OPTIONS", "graph_opt_level=3;autotune=off")
    example_networks.check_losses(*EXAMPLES[name])


require()
