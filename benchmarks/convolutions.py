"""Time minigraph's own convolutions beside oneDNN's, as ResNets and AlexNet have them.

    python benchmarks/convolutions.py --threads 2

A layer is called by the channels that come out, "/2" if its strides are 2, or by the network that
it begins.  Images are in blocks of channels, those of three in nchw.  The kernels take turns.
Prints the median wall time of each and, since other programs disturb it less, its median processor
time, of all threads together.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from kernel_runs import kernel_runs
from turns import seconds, take_turns

import minigraph as mg
from minigraph.devices.cpu import onednn
from minigraph.devices.cpu.candidates import CANDIDATES
from minigraph.devices.problem import Arrangement
from minigraph.graph import Node
from minigraph.ops.conv import Conv2d, Conv2dBackwardData, Conv2dBackwardWeights
from minigraph.ops.layout import LaidOut, packed


class Layer(NamedTuple):
    """Channels before and behind, the side of images, and the window, its stride and padding."""

    ins: int
    outs: int
    side: int
    window: int = 3
    stride: int = 1
    padding: int = 1


LAYERS = {str(n): Layer(n, n, side) for n, side in ((64, 56), (128, 28), (256, 14), (512, 7))}
LAYERS |= {f"{n}/2": Layer(n // 2, n, side, 3, 2) for n, side in ((128, 56), (256, 28), (512, 14))}
LAYERS |= {"resnet": Layer(3, 64, 224, 7, 2, 3), "alexnet": Layer(3, 64, 224, 11, 4, 2)}


def directions(images: int, layer: Layer) -> Iterator[tuple[str, Node]]:
    """Yield a convolution and its gradients; none for images of a few channels."""
    block, conv = onednn.block(), Conv2d((layer.stride,) * 2, (layer.padding,) * 2)
    lanes = 1 if layer.ins < block else block
    shape = (images, layer.ins, layer.side, layer.side)
    x = mg.input("x", packed(shape, lanes))
    w = mg.input("w", (layer.outs, layer.ins, layer.window, layer.window))
    forward = LaidOut(conv, (lanes, 1), (block,))(x, w)
    dy = mg.input("dy", forward.shape)
    yield "forward", forward
    if lanes > 1:
        yield "images", LaidOut(Conv2dBackwardData(conv, shape), (block, 1), (block,))(dy, w)
    yield "weights", LaidOut(Conv2dBackwardWeights(conv, w.shape), (block, lanes), (1,))(dy, x)


def runs(node: Node, threads: int) -> dict[str, Callable[[], None]]:
    """Return what runs each kernel, by its name."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(x.shape).astype("float32") for x in node.inputs]
    y = np.empty(node.shape, "float32")
    arrangement = Arrangement(node, [x.spec.strides for x in node.inputs], ())
    candidates = (each for offered in CANDIDATES for each in offered(arrangement, threads))
    return kernel_runs(candidates, xs, y)


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
    parser.add_argument(
        "--layers",
        nargs="+",
        default=[*LAYERS],
        choices=[*LAYERS],
        help="as 256, or 256/2: strides",
    )
    given = parser.parse_args()
    for images in given.images:
        for name in given.layers:
            for way, node in directions(images, LAYERS[name]):
                found = times(runs(node, given.threads), given.turns)
                text = ", ".join(f"{n} {w:.1f} ({used:.1f})" for n, (w, used) in found.items())
                print(f"{images} images, {name}, {way}: {text} ms", flush=True)


if __name__ == "__main__":
    main()
