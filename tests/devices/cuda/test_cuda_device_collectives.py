"""Collectives on GPUs: `pytest -m cuda`.  Skipped where there is none."""

from pathlib import Path

import numpy as np
import pytest
from cuda_device import on_host, require
from launched import start
from new_process import wait

import minigraph as mg
from minigraph import ops
from minigraph.distributed import World
from minigraph.graph import BFLOAT16
from minigraph.ops.collective import AllGather, AllReduce, Broadcast, Collective, ReduceScatter

pytestmark = pytest.mark.cuda
TESTS = Path(__file__).parents[2]
DTYPES = ("float32", "float64", "float16", BFLOAT16, "int64", "int16", "uint8")
ALONE: list[Collective] = [
    *(AllReduce(World(), "sum"), AllReduce(World(), "max"), Broadcast(World(), 0)),
    *(AllGather(World()), ReduceScatter(World())),
]


@pytest.mark.parametrize("level", [0, 1, 3])
@pytest.mark.parametrize("op", ALONE, ids=str)
def test_one_process_gets_back_what_it_gives_also_from_a_graph(op, level):
    inputs = [mg.input(np.dtype(dtype).name, (300, 7), dtype) for dtype in DTYPES]
    arrays = [np.arange(2100).reshape(300, 7).astype(x.dtype) for x in inputs]
    step = mg.comp_graph("cuda", {"graph_opt_level": level}).compile(
        inputs, [op(ops.abs(x)) + 1 for x in inputs]
    )
    for _ in range(4):
        for result, x in zip(step(*arrays), arrays, strict=True):
            np.testing.assert_array_equal(on_host(result), np.abs(x) + 1)
    assert step.report().launches == 1


def test_a_maximum_keeps_nan():
    x = mg.input("x", (3,))
    step = mg.comp_graph("cuda").compile([x], AllReduce(World(), "max")(x))
    for _ in range(3):
        np.testing.assert_array_equal(on_host(step([1, np.nan, 2])), np.float32([1, np.nan, 2]))


def test_an_exchange_is_timed_also_where_it_is_with_nobody():
    """What runs beside it is seen with several processes only: alone, NCCL does nothing."""
    x = mg.input("x", (1000,))
    step = mg.comp_graph("cuda").compile([x], [AllReduce(World(), "sum", "w")(x * 2), ops.sin(x)])
    value = np.ones(1000, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(on_host(step(value)[0]), 2 * value)
    step.profile(value)
    (traffic,) = step.report().traffic
    assert traffic.times == 5 and traffic.pending > 0


def test_processes_compute_and_train_together():
    from minigraph.devices.cuda.driver import device_count

    if device_count() < 2:
        pytest.skip("there is one device")
    wait(start(2, TESTS / "launched_cuda.py", "devices"))


require()
