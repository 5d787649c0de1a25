"""The cost of an exchange by NCCL on this machine's devices."""

import argparse

import numpy as np

import minigraph as mg
from minigraph import ops
from minigraph.ops.collective import AllReduce

SIZES = [1 << n for n in (10, 16, 20, 22, 24, 26)]  # bytes
CALLS = 21


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda")


def exchange(args: argparse.Namespace) -> None:
    """Time an all-reduce between the devices of the processes, by size: alone, and beside a kernel.

    One process exchanges with itself, which measures the overhead of a call with its fork and join;
    several, started by `mpiexec -n`, measure the links of the devices.  Times are means by the
    device's clock, in the graph of a step; the kernel reads 256 MiB.
    """
    world = mg.distributed.world()
    lines = [f"{'bytes':>10} {'on its way':>12} {'waited for':>12} {'beside':>12}"]
    for nbytes in SIZES:
        times = " ".join(f"{1e6 * s:>9.1f} us" for s in _seconds(args.device, nbytes))
        lines.append(f"{nbytes:>10} {times}")
    if world.rank == 0:
        print("\n".join([f"{world.size} processes", *lines]))


def _seconds(device: str, nbytes: int) -> list[float]:
    """Return the seconds of an exchange: on its way, waited for, and waited for beside a kernel."""
    x, large = mg.input("x", (nbytes // 4,)), mg.Parameter(np.ones(1 << 26, np.float32))
    total = AllReduce(mg.distributed.world(), "sum", "x")(x + 1)
    beside = ops.cumulative_sum(large)[-1]
    value = np.zeros(nbytes // 4, np.float32)
    seconds = []
    for outputs in ([total], [total, beside]):
        step = mg.comp_graph(device).compile([x], outputs)
        for _ in range(3):
            step(value)
        step.profile(value, calls=CALLS)
        (traffic,) = step.report().traffic
        seconds += [traffic.pending / traffic.times, traffic.waited / traffic.times]
    return [*seconds[:2], seconds[3]]
