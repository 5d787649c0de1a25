"""The networks, written once for every library: layers as data, their shapes, their arithmetic.

AlexNet and the ResNets are those of the examples, layer by layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]  # of one example, without the batch


@dataclass(frozen=True)
class Conv:
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True


@dataclass(frozen=True)
class BatchNorm:
    channels: int


@dataclass(frozen=True)
class Relu:
    pass


@dataclass(frozen=True)
class MaxPool:
    kernel: int
    stride: int
    padding: int = 0


@dataclass(frozen=True)
class AveragePool:
    """The mean over parts of the image, `size` x `size` of them."""

    size: int


@dataclass(frozen=True)
class Flatten:
    pass


@dataclass(frozen=True)
class Dropout:
    p: float = 0.5


@dataclass(frozen=True)
class Linear:
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Residual:
    """relu(body(x) + shortcut(x)); an empty shortcut is x itself."""

    body: Layers
    shortcut: Layers


Layer = Conv | BatchNorm | Relu | MaxPool | AveragePool | Flatten | Dropout | Linear | Residual
Layers = tuple[Layer, ...]


# ---------------------------------------------------------------- the networks


def mlp() -> Layers:
    return (Flatten(), Linear(784, 128), Relu(), Linear(128, 10))


def alexnet(classes: int = 1000) -> Layers:
    return (
        *(Conv(3, 64, 11, 4, 2), Relu(), MaxPool(3, 2)),
        *(Conv(64, 192, 5, 1, 2), Relu(), MaxPool(3, 2)),
        *(Conv(192, 384, 3, 1, 1), Relu()),
        *(Conv(384, 256, 3, 1, 1), Relu()),
        *(Conv(256, 256, 3, 1, 1), Relu(), MaxPool(3, 2)),
        *(AveragePool(6), Flatten()),
        *(Dropout(), Linear(9216, 4096), Relu()),
        *(Dropout(), Linear(4096, 4096), Relu()),
        Linear(4096, classes),
    )


def resnet(depths: Sequence[int], bottleneck: bool, classes: int = 1000) -> Layers:
    layers: list[Layer] = [Conv(3, 64, 7, 2, 3, bias=False), BatchNorm(64), Relu()]
    layers.append(MaxPool(3, 2, 1))
    channels = 64
    for i, depth in enumerate(depths):
        for j in range(depth):
            width, stride = 64 << i, 2 if i > 0 and j == 0 else 1
            layers.append(_block(channels, width, stride, bottleneck))
            channels = 4 * width if bottleneck else width
    return (*layers, AveragePool(1), Flatten(), Linear(channels, classes))


def _block(inputs: int, width: int, stride: int, bottleneck: bool) -> Residual:
    outputs = 4 * width if bottleneck else width
    convs = [(inputs, width, 3, stride), (width, outputs, 3, 1)]
    if bottleneck:
        convs = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
    body: list[Layer] = []
    for c, k, size, step in convs:
        body += [Conv(c, k, size, step, size // 2, bias=False), BatchNorm(k), Relu()]
    shortcut: Layers = ()
    if stride != 1 or inputs != outputs:
        shortcut = (Conv(inputs, outputs, 1, stride, bias=False), BatchNorm(outputs))
    return Residual(tuple(body[:-1]), shortcut)


def module(nn: Any, layers: Layers, residual: Callable[[Any, Any], Any]) -> Any:
    """Return layers as a module of `nn`: minigraph's, or torch's, which has the same names.

    residual  makes a module of the two branches of a block
    """
    return nn.Sequential(*(_module(nn, layer, residual) for layer in layers))


def _module(nn: Any, layer: Layer, residual: Callable[[Any, Any], Any]) -> Any:
    match layer:
        case Conv(inputs, outputs, kernel, stride, padding, bias):
            return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
        case BatchNorm(channels):
            return nn.BatchNorm2d(channels)
        case Relu():
            return nn.ReLU()
        case MaxPool(kernel, stride, padding):
            return nn.MaxPool2d(kernel, stride, padding)
        case AveragePool(size):
            return nn.AdaptiveAvgPool2d(size)
        case Flatten():
            return nn.Flatten()
        case Dropout(p):
            return nn.Dropout(p)
        case Linear(inputs, outputs):
            return nn.Linear(inputs, outputs)
        case Residual(body, shortcut):
            return residual(module(nn, body, residual), module(nn, shortcut, residual))


def without_dropout(layers: Layers) -> Layers:
    """Return layers less their dropout, which no block has, so that two libraries agree."""
    return tuple(layer for layer in layers if not isinstance(layer, Dropout))


# ---------------------------------------------------------------- their arithmetic


def parameters(layers: Layers) -> int:
    """Return how many numbers are trained."""
    return sum(_parameters(layer) for layer, _, _ in walk(layers, (3, 224, 224)))


def _parameters(layer: Layer) -> int:
    match layer:
        case Conv(inputs, outputs, kernel, bias=bias):
            return (inputs * kernel * kernel + bias) * outputs
        case BatchNorm(channels):
            return 2 * channels
        case Linear(inputs, outputs):
            return (inputs + 1) * outputs
    return 0


def walk(layers: Layers, shape: Shape) -> Iterator[tuple[Layer, Shape, Shape]]:
    """Yield each layer but residual ones, whose insides come, with the shapes before and after."""
    for layer in layers:
        before = shape
        if isinstance(layer, Residual):
            for inner in walk(layer.body, before):
                yield inner
                shape = inner[2]
            yield from walk(layer.shortcut, before)
        else:
            shape = _result(layer, before)
            yield layer, before, shape


def _result(layer: Layer, shape: Shape) -> Shape:
    match layer:
        case Conv(outputs=channels, kernel=k, stride=s, padding=p):
            return (channels, *((n + 2 * p - k) // s + 1 for n in shape[1:]))
        case MaxPool(kernel=k, stride=s, padding=p):
            return (shape[0], *((n + 2 * p - k) // s + 1 for n in shape[1:]))
        case AveragePool(size):
            return (shape[0], size, size)
        case Flatten():
            return (math.prod(shape),)
        case Linear(outputs=outputs):
            return (outputs,)
    return shape


def training_flops(layers: Layers, shape: Shape, batch: int) -> int:
    """Return the operations of the convolutions and products of one training step.

    Each runs three times, forward and for two gradients, but nobody asks the first for the gradient
    of the images.
    """
    forward = [
        2 * batch * math.prod(after) * _terms(layer)
        for layer, _, after in walk(layers, shape)
        if isinstance(layer, Conv | Linear)
    ]
    return 3 * sum(forward) - forward[0]


def _terms(layer: Conv | Linear) -> int:
    return layer.inputs * (layer.kernel**2 if isinstance(layer, Conv) else 1)


def training_bytes(layers: Layers, shape: Shape, batch: int, width: int = 4) -> int:
    """Return what one training step with Adam has to move at least.

    The result of each convolution and product, `width` bytes a number, is written once and read
    once; a parameter and its two moments are read and written, in float32.
    """
    results = sum(
        math.prod(after)
        for layer, _, after in walk(layers, shape)
        if isinstance(layer, Conv | Linear)
    )
    return 2 * width * batch * results + 4 * 6 * parameters(layers)
