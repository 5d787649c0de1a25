"""Time Winograd's algorithm beside oneDNN on convolutions of 3 x 3, as ResNets have them.

    python benchmarks/winograd.py --threads 2

All images are in blocks of channels.  The kernels take turns.  Prints the median wall time of each
and, since other programs disturb it less, its median processor time, of all threads together.
"""

import argparse
import time
from collections.abc import Callable, Iterator

import numpy as np
from turns import seconds, take_turns

import minigraph as mg
from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.candidates import CANDIDATES
from minigraph.devices.cpu.workbench import KernelRunner
from minigraph.devices.problem import Arrangement
from minigraph.graph import Node
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, packed

SIDES = {64: 56, 128: 28, 256: 14, 512: 7}  # of images by channels, of which as many come out


def directions(images: int, channels: int, side: int) -> Iterator[tuple[str, Node]]:
    """Yield a convolution and its gradients."""
    block, conv = onednn.block(), Conv2d(padding=(1, 1))
    shape = (images, channels, side, side)
    x = mg.input("x", packed(shape, block))
    w = mg.input("w", (channels, channels, 3, 3))
    yield "forward", LaidOut(conv, (block, 1), (block,))(x, w)
    yield "images", LaidOut(Conv2dBackwardData(conv, shape), (block, 1), (block,))(x, w)
    yield "weights", LaidOut(Conv2dBackwardWeights(conv, w.shape), (block, block), (1,))(x, x)


def runs(node: Node, threads: int) -> dict[str, Callable[[], None]]:
    """Return what runs each kernel, by its name."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(x.shape).astype("float32") for x in node.inputs]
    y = np.empty(node.shape, "float32")
    arrangement = Arrangement(node, [x.spec.strides for x in node.inputs], ())
    found = {}
    for offered in CANDIDATES:
        for candidate in offered(arrangement, threads):
            kernel = candidate.make()
            run, scratch = KernelRunner(kernel, on_disk=True), np.empty(kernel.scratch, np.uint8)
            found[candidate.name] = lambda run=run, scratch=scratch: run(xs, [y], scratch)
    return found


def times(found: dict[str, Callable[[], None]], turns: int) -> dict[str, tuple[float, float]]:
    """Return median wall and processor times in milliseconds."""

    def timed(run: Callable[[], None]) -> tuple[float, float]:
        used = time.process_time()
        return seconds(run), time.process_time() - used

    taken = take_turns([lambda run=run: timed(run) for run in found.values()], turns)
    return dict(zip(found, (1e3 * np.median(taken, axis=0)).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--images", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--channels", type=int, nargs="+", default=[*SIDES], choices=[*SIDES])
    given = parser.parse_args()
    for images in given.images:
        for channels in given.channels:
            side = SIDES[channels]
            for way, node in directions(images, channels, side):
                found = times(runs(node, given.threads), given.turns)
                text = ", ".join(f"{n} {w:.1f} ({used:.1f})" for n, (w, used) in found.items())
                print(f"{images} x {channels} x {side} x {side}, {way}: {text} ms", flush=True)


if __name__ == "__main__":
    main()
