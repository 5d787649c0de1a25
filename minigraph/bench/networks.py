"""The networks, written once for every library, and what a training step of them costs.

A network is a function of a library: of anything that has layers under torch.nn's names and a
`Residual`.  AlexNet and the ResNets are those of the examples, layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

Shape = tuple[int, ...]  # of one example, without the batch
Network = Callable[[Any], Any]
DROPOUT = 0.5


def mlp(nn: Any) -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def alexnet(nn: Any) -> Any:
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, 1, 1), nn.ReLU()),
        *(nn.Conv2d(384, 256, 3, 1, 1), nn.ReLU()),
        *(nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(3, 2)),
        *(nn.AdaptiveAvgPool2d(6), nn.Flatten()),
        *(nn.Dropout(DROPOUT), nn.Linear(9216, 4096), nn.ReLU()),
        *(nn.Dropout(DROPOUT), nn.Linear(4096, 4096), nn.ReLU()),
        nn.Linear(4096, 1000),
    )


def resnet(nn: Any, depths: Sequence[int], bottleneck: bool) -> Any:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    channels = 64
    for i, depth in enumerate(depths):
        for j in range(depth):
            width, stride = 64 << i, 2 if i > 0 and j == 0 else 1
            layers.append(_block(nn, channels, width, stride, bottleneck))
            channels = 4 * width if bottleneck else width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers)


def _block(nn: Any, inputs: int, width: int, stride: int, bottleneck: bool) -> Any:
    outputs = 4 * width if bottleneck else width
    convs = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
    if bottleneck:
        convs = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
    body = []
    for before, after, size, step in convs:
        conv = nn.Conv2d(before, after, size, step, size // 2, bias=False)
        body += [conv, nn.BatchNorm2d(after), nn.ReLU()]
    shortcut = []
    if stride != 1 or inputs != outputs:
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Residual(nn.Sequential(*body[:-1]), nn.Sequential(*shortcut))


def with_residual(nn: Any) -> Any:
    """Return a library like torch.nn with a `Residual`: relu(body(x) + shortcut(x))."""

    class Residual(nn.Module):  # type: ignore[misc]
        def __init__(self, body: Any, shortcut: Any) -> None:
            super().__init__()
            self.body, self.shortcut, self.relu = body, shortcut, nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    return SimpleNamespace(**{**vars(nn), "Residual": Residual})


def without_dropout(nn: Any) -> Any:
    """Return a library whose dropout drops nothing."""
    return SimpleNamespace(**{**vars(nn), "Dropout": lambda p: nn.Dropout(0.0)})


# ---------------------------------------------------------------- what a training step costs


class Arithmetic:
    """A library that computes nothing: its layers map the shape of an example, and are counted.

    parameters  numbers that are trained
    products    multiplications for an example, of each convolution and matrix product in turn
    results     numbers that the convolutions and matrix products give
    """

    def __init__(self, network: Network, shape: Shape) -> None:
        self.parameters = 0
        self.products: list[int] = []
        self.results = 0
        network(self)(shape)

    def flops(self, batch: int) -> int:
        """Return the operations of the convolutions and matrix products of a training step.

        Each runs forward and for two gradients, but the gradient of the images is not needed.
        """
        return 2 * batch * (3 * sum(self.products) - self.products[0])

    def bytes(self, batch: int, width: int) -> int:
        """Return the bytes that a training step with Adam moves at least.

        The result of each convolution and matrix product, `width` bytes a number, is written once
        and read once.  A parameter and its two moments are read and written, in float32.
        """
        return 2 * width * batch * self.results + 4 * 6 * self.parameters

    def _product(self, terms: int, bias: bool, result: Shape) -> Shape:
        self.parameters += (terms + bias) * result[0]
        self.products.append(terms * math.prod(result))
        self.results += math.prod(result)
        return result

    def Sequential(self, *layers: Any) -> Any:
        def result(shape: Shape) -> Shape:
            for layer in layers:
                shape = layer(shape)
            return shape

        return result

    def Residual(self, body: Any, shortcut: Any) -> Any:
        def result(shape: Shape) -> Shape:
            shortcut(shape)  # to count it
            return body(shape)

        return result

    def Conv2d(
        self, inputs: int, outputs: int, k: int, s: int = 1, p: int = 0, bias: bool = True
    ) -> Any:
        pooled = self.MaxPool2d(k, s, p)
        return lambda shape: self._product(inputs * k * k, bias, (outputs, *pooled(shape)[1:]))

    def Linear(self, inputs: int, outputs: int) -> Any:
        return lambda shape: self._product(inputs, True, (outputs,))

    def MaxPool2d(self, k: int, s: int, p: int = 0) -> Any:
        return lambda shape: (shape[0], *((n + 2 * p - k) // s + 1 for n in shape[1:]))

    def AdaptiveAvgPool2d(self, size: int) -> Any:
        return lambda shape: (shape[0], size, size)

    def BatchNorm2d(self, channels: int) -> Any:
        self.parameters += 2 * channels
        return lambda shape: shape

    def Flatten(self) -> Any:
        return lambda shape: (math.prod(shape),)

    def ReLU(self) -> Any:
        return lambda shape: shape

    def Dropout(self, p: float) -> Any:
        return lambda shape: shape
