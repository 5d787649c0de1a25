"""What launched processes run on CUDA devices, each on its own.

They are stand-ins, unless an argument says otherwise:

    mpiexec -n 2 python tests/launched_cuda.py devices
"""

import sys

import launched_collectives as collectives
import launched_training as training
import pytest
from cuda_stand_in import StandIn, by_meaning

import minigraph as mg

WORLD = mg.distributed.world()


def opened(patch, ordinal=WORLD.rank):
    """Let this process open a stand-in with this number."""
    by_meaning(patch, StandIn(ordinal=ordinal))


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


if __name__ == "__main__":
    if sys.argv[1:] == ["devices"]:
        check()
    else:
        with pytest.MonkeyPatch.context() as patch:
            opened(patch)
            check()
