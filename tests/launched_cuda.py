"""The program of launched processes on CUDA devices, one for each.

They are stand-ins, and process 1 fails in the end, in a way that an argument names.  With
"devices" they are real, and none fails:

    mpiexec -n 2 python tests/launched_cuda.py devices
"""

import os
import signal
import sys
import time

import launched_collectives as collectives
import launched_training as training
import numpy as np
import pytest
from cuda_stand_in import StandIn, by_meaning

import minigraph as mg
from minigraph.distributed import World
from minigraph.ops.collective import AllReduce

WORLD = mg.distributed.world()
FAULTS = {
    "ends": sys.exit,
    "hangs": lambda: time.sleep(30),
    "is killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def check():
    for level in (0, 3):
        collectives.results("cuda", level)
        collectives.gradients(level, "cuda")
    collectives.nan_wins("cuda")
    collectives.buckets("off", 2, "cuda")
    collectives.buckets("bfloat16", 1, "cuda")
    training.compare("small", 5, "cuda")
    x = mg.input("x", ())
    name = mg.comp_graph("cuda").compile([x], x).report().device
    assert WORLD.gather(name) == [f"cuda:{rank}" for rank in range(WORLD.size)]


def overlap():
    """An exchange runs beside kernels that do not need it."""
    x = mg.input("x", (1 << 24,))
    total = AllReduce(WORLD, "sum", "w")(x * 2)
    y = x
    for _ in range(20):
        y = mg.ops.sin(mg.ops.cumulative_sum(y))  # which does not fuse
    step = mg.comp_graph("cuda").compile([x], [total, y])
    value = np.ones(1 << 24, np.float32)
    for _ in range(3):
        assert (step(value)[0].get() == 2 * WORLD.size).all()
    step.profile(value)
    assert step.report().hidden > 0.5


def fail(fault):
    """Train for three calls, before the last of which process 1 fails."""
    x, p = mg.input("x", (3,)), mg.Parameter(np.zeros(3, "float32"), "bias")
    loss = ((p - x) ** 2).sum()
    updates = mg.optim.SGD([p], 0.5).minimize(loss, reduce=WORLD)
    options = {"autotune": "off", "distributed.timeout": 2.0}
    step = mg.comp_graph("cuda", options).compile([x], loss, updates)
    for call in range(3):
        if call == 2 and WORLD.rank == 1:
            FAULTS[fault]()
        step(np.full(3, WORLD.rank, "float32"))


if __name__ == "__main__":
    if sys.argv[1:] == ["devices"]:
        check()
        overlap()
    else:
        with pytest.MonkeyPatch.context() as patch:
            by_meaning(patch, StandIn(ordinal=WORLD.rank))
            patch.setattr(sys.modules[World.__module__], "END_CHECK_SECONDS", 0.1)
            check()
            fail(sys.argv[1])
