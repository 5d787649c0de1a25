"""What is measured: expressions on large arrays and training steps of networks, with data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from minigraph.bench import networks
from minigraph.bench.networks import Layers, Shape
from minigraph.bench.precision import PRECISIONS, USUAL
from minigraph.bench.scale import SCALES, Scale, scale
from minigraph.data import Synthetic

Array = npt.NDArray[Any]
BATCHES = 2  # of different images, shown in turn
LEARNING_RATE = 1e-4
# What MegBrain's documentation gives for its levels, as speed over that of level 0.
Published = dict[int, float]


@dataclass(frozen=True)
class Expression:
    """A formula on arrays of float32.

    formula  takes a library's functions under NumPy's names, then the arrays
    """

    title: str
    formula: Callable[..., Any]
    shapes: tuple[Shape, ...]
    published: Published
    images: int = 0
    flops: int = 0

    @property
    def bytes(self) -> int:
        """What is read and written at least; the result has the shape of an operand."""
        return 4 * (sum(map(math.prod, self.shapes)) + math.prod(self.shapes[0]))

    def data(self) -> list[Array]:
        """Return the arrays, of numbers in [0, 1)."""
        rng = np.random.default_rng(0)
        return [rng.random(shape, dtype=np.float32) for shape in self.shapes]


@dataclass(frozen=True)
class Training:
    """One step of training a network with Adam and cross entropy.

    width  bytes of a number of what a convolution or product gives; parameters are float32
    """

    title: str
    layers: Layers
    shape: Shape
    images: int  # a step
    classes: int
    published: Published
    width: int

    @property
    def flops(self) -> int:
        return networks.training_flops(self.layers, self.shape, self.images)

    @property
    def bytes(self) -> int:
        return networks.training_bytes(self.layers, self.shape, self.images, self.width)

    def data(self) -> list[tuple[Array, Array]]:
        """Return batches of images with a pattern for each class, and of labels."""
        n = self.images
        examples = Synthetic(self.shape, self.classes, n * BATCHES)
        # Labels count up and begin again, so examples that follow one another differ in theirs.
        images, labels = zip(*(examples[i] for i in range(len(examples))), strict=True)
        return [
            (np.stack(images[i : i + n]), np.array(labels[i : i + n], np.int64))
            for i in range(0, len(examples), n)
        ]


Case = Expression | Training


def expressions(sizes: Scale) -> dict[str, Expression]:
    """Return the expressions on arrays of these sizes, by name."""
    three, floats = ((sizes.floats,),) * 3, f"{sizes.floats >> 20}M floats"
    n = sizes.square
    return {
        "abc": Expression(
            f"a * b * c, {floats}", lambda xp, a, b, c: a * b * c, three, {2: 1.0, 3: 1.5}
        ),
        "abplusc": Expression(
            f"a * b + c, {floats}", lambda xp, a, b, c: a * b + c, three, {2: 1.5, 3: 1.5}
        ),
        "chain": Expression(
            f"14 ops with exp and tanh, {floats}",
            lambda xp, a, b, c: (
                xp.tanh(a * b + c) * xp.exp(-xp.abs(a - c)) / (1 + a * a) + xp.maximum(b, c) * 0.5
            ),
            three,
            {},
        ),
        "softmax": Expression(
            f"softmax, {n} x {n}", lambda xp, x: xp.softmax(x, -1), ((n, n),), {}
        ),
    }


EXPRESSIONS = expressions(SCALES["cpu"])


@dataclass(frozen=True)
class Network:
    title: str
    layers: Layers
    published: Published


NETWORKS = {
    "mlp": Network("MLP 784-128-10", networks.mlp(), {}),
    "alexnet": Network("AlexNet", networks.alexnet(), {2: 1.03, 3: 1.14}),
    "resnet18": Network("ResNet-18", networks.resnet((2, 2, 2, 2), False), {}),
    "resnet50": Network("ResNet-50", networks.resnet((3, 4, 6, 3), True), {2: 1.22, 3: 1.24}),
}
NAMES = (*EXPRESSIONS, *NETWORKS)


def case(
    name: str,
    batch_size: int | None = None,
    quick: bool = False,
    device: str = "cpu",
    precision: str = USUAL,
) -> Case:
    """Return the case called `name`; a quick one has smaller images, and fewer of them."""
    sizes = scale(device)
    if name in EXPRESSIONS:
        return expressions(sizes)[name]
    network = NETWORKS[name]
    batch = batch_size or (sizes.quick if quick else sizes.batches)[name]
    side = 64 if quick else 224
    shape, classes = ((1, 28, 28), 10) if name == "mlp" else ((3, side, side), 1000)
    title = f"{network.title}, batch {batch}" + ("" if name == "mlp" else f", {side} x {side}")
    width = PRECISIONS[precision].width
    return Training(title, network.layers, shape, batch, classes, network.published, width)
