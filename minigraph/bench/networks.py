"""The networks, written once for every library, and what a training step of them costs.

A network is a function of a library: of anything that has layers under torch.nn's names, and those
of `with_blocks`.  AlexNet, the ResNets and the GPT are those of the examples, layer by layer.
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
    return _stages(nn, layers, 64, depths, bottleneck, 1000)


def resnet20(nn: Any) -> Any:
    """The smallest of the residual networks for CIFAR-10 (He et al., 2015)."""
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return _stages(nn, layers, 16, (3, 3, 3), False, 10)


def _stages(
    nn: Any, layers: list[Any], channels: int, depths: Sequence[int], bottleneck: bool, classes: int
) -> Any:
    first = channels
    for i, depth in enumerate(depths):
        for j in range(depth):
            width, stride = first << i, 2 if i > 0 and j == 0 else 1
            layers.append(_block(nn, channels, width, stride, bottleneck))
            channels = 4 * width if bottleneck else width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
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


# Expansion, channels, blocks, stride of the first: table 2 of Sandler et al., 2018.
INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenetv2(nn: Any) -> Any:
    """MobileNetV2, as torchvision has it."""
    layers = [*_normed(nn, 3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    for expansion, width, count, stride in INVERTED:
        for i in range(count):
            layers.append(_inverted(nn, channels, width, stride if i == 0 else 1, expansion))
            channels = width
    layers += [*_normed(nn, channels, 1280, 1, 1), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def _inverted(nn: Any, inputs: int, outputs: int, stride: int, expansion: int) -> Any:
    wide = inputs * expansion
    body = [] if expansion == 1 else [*_normed(nn, inputs, wide, 1, 1), nn.ReLU6()]
    body += [*_normed(nn, wide, wide, 3, stride, groups=wide), nn.ReLU6()]
    made = nn.Sequential(*body, *_normed(nn, wide, outputs, 1, 1))
    return nn.Added(made) if stride == 1 and inputs == outputs else made


def _normed(nn: Any, inputs: int, outputs: int, k: int, s: int, groups: int = 1) -> list[Any]:
    conv = nn.Conv2d(inputs, outputs, k, s, k // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def unet(nn: Any, width: int = 32, depth: int = 3, classes: int = 4) -> Any:
    """A U-Net (Ronneberger et al., 2015) with padding and batch norms, `depth` times halved."""

    def twice(inputs: int, outputs: int) -> list[Any]:
        pairs = ((inputs, outputs), (outputs, outputs))
        return [layer for a, b in pairs for layer in (*_normed(nn, a, b, 3, 1), nn.ReLU())]

    inner = nn.Sequential(*twice(width << depth - 1, width << depth))
    for i in reversed(range(depth)):
        outputs = width << i
        grown = nn.ConvTranspose2d(2 * outputs, outputs, 2, 2)
        below = nn.Sequential(nn.MaxPool2d(2, 2), inner, grown)
        before = twice(3 if i == 0 else outputs // 2, outputs)
        inner = nn.Sequential(*before, nn.Beside(below), *twice(2 * outputs, outputs))
    return nn.Sequential(inner, nn.Conv2d(width, classes, 1))


CONTEXT, VOCABULARY = 64, 96  # tokens in a row, and how many there are: of printable ASCII


def gpt(nn: Any, layers: int = 4, width: int = 128, heads: int = 4) -> Any:
    """A GPT of characters: blocks as in GPT-2 (Radford et al., 2019); a row of scores a token."""
    blocks = []
    for _ in range(layers):
        attention = nn.Sequential(nn.LayerNorm(width), nn.CausalAttention(width, heads))
        wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        blocks += [nn.Added(attention), nn.Added(nn.Sequential(nn.LayerNorm(width), wide))]
    first = nn.Tokens(VOCABULARY, CONTEXT, width)
    scores = nn.Linear(width, VOCABULARY, bias=False)
    return nn.Sequential(first, *blocks, nn.LayerNorm(width), scores, nn.Flatten(0, 1))


def lstm(nn: Any, width: int = 256, layers: int = 2) -> Any:
    """LSTMs that predict characters; a row of scores a token."""
    states = nn.States(nn.LSTM(width, width, layers, batch_first=True))
    scores = nn.Linear(width, VOCABULARY)
    return nn.Sequential(nn.Embedding(VOCABULARY, width), states, scores, nn.Flatten(0, 1))


def with_blocks(nn: Any, functions: Any) -> Any:
    """Return a library like torch.nn with what the networks are made of besides.

    functions  has `concat` and `scaled_dot_product_attention`, of torch or of minigraph
    """

    class Residual(nn.Module):  # type: ignore[misc]
        """relu(body(x) + shortcut(x))."""

        def __init__(self, body: Any, shortcut: Any) -> None:
            super().__init__()
            self.body, self.shortcut, self.relu = body, shortcut, nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.shortcut(x))

    class Added(nn.Module):  # type: ignore[misc]
        """x + body(x)."""

        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return x + self.body(x)

    class Beside(nn.Module):  # type: ignore[misc]
        """The channels of x, then those of body(x)."""

        def __init__(self, body: Any) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: Any) -> Any:
            return functions.concat([x, self.body(x)], 1)

    class Tokens(nn.Module):  # type: ignore[misc]
        """A vector for each token, plus one for its place."""

        def __init__(self, count: int, length: int, width: int) -> None:
            super().__init__()
            self.tokens = nn.Embedding(count, width)
            self.places = nn.Embedding(length, width)

        def forward(self, x: Any) -> Any:
            return self.tokens(x) + self.places.weight

    class States(nn.Module):  # type: ignore[misc]
        """The states of all steps of a recurrent layer."""

        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(x)[0]

    class CausalAttention(nn.Module):  # type: ignore[misc]
        """Self-attention of rows (n, t, width), where no token sees later ones."""

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            n, t, width = x.shape
            every = self.into(x).reshape(n, t, 3, self.heads, width // self.heads)
            q, k, v = (every[:, :, i].swapaxes(1, 2) for i in range(3))
            y = functions.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.swapaxes(1, 2).reshape(n, t, width))

    blocks = (Residual, Added, Beside, Tokens, States, CausalAttention)
    return SimpleNamespace(**{**vars(nn), **{block.__name__: block for block in blocks}})


def without_dropout(nn: Any) -> Any:
    """Return a library whose dropout drops nothing."""
    return SimpleNamespace(**{**vars(nn), "Dropout": lambda p: nn.Dropout(0.0)})


# ---------------------------------------------------------------- what a network costs


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

    def forward_flops(self, batch: int) -> int:
        """Return the operations of the convolutions and matrix products of a prediction."""
        return 2 * batch * sum(self.products)

    def forward_bytes(self, batch: int, width: int) -> int:
        """Return the bytes that a prediction moves at least: parameters, and results twice."""
        return 2 * width * batch * self.results + 4 * self.parameters

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

    def _product(self, terms: int, bias: bool, result: Shape, windows: int = 1) -> Shape:
        """Count a convolution of so many terms, with other weights in each of `windows`."""
        self.parameters += (terms * windows + bias) * result[0]
        self._count(terms, result)
        return result

    def _count(self, terms: int, result: Shape) -> None:
        self.products.append(terms * math.prod(result))
        self.results += math.prod(result)

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

    def Added(self, body: Any) -> Any:
        return body

    def Beside(self, body: Any) -> Any:
        return lambda shape: (shape[0] + body(shape)[0], *shape[1:])

    def Tokens(self, count: int, length: int, width: int) -> Any:
        def vectors(shape: Shape) -> Shape:
            self.parameters += (count + length) * width
            self.products.append(0)
            return (*shape, width)

        return vectors

    def Embedding(self, count: int, width: int) -> Any:
        def vectors(shape: Shape) -> Shape:
            self.parameters += count * width
            self.products.append(0)
            return (*shape, width)

        return vectors

    def States(self, layer: Any) -> Any:
        return layer

    def LSTM(self, inputs: int, width: int, layers: int, batch_first: bool) -> Any:
        def states(shape: Shape) -> Shape:
            tokens, _ = shape
            for layer in range(layers):
                for terms in (width if layer else inputs, width):
                    self.parameters += (terms + 1) * 4 * width
                    self._count(terms, (tokens, 4 * width))
            return tokens, width

        return states

    def CausalAttention(self, width: int, heads: int) -> Any:
        into, out = self.Linear(width, 3 * width), self.Linear(width, width)

        def attention(shape: Shape) -> Shape:
            tokens, _ = shape
            into(shape)
            # Two products: of each token with itself and the earlier ones.
            self.products += 2 * [tokens * (tokens + 1) // 2 * width]
            self.results += tokens * (tokens + 1) // 2 * heads + tokens * width
            return out(shape)

        return attention

    def Conv2d(
        self,
        inputs: int,
        outputs: int,
        k: int,
        s: int = 1,
        p: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> Any:
        pooled = self.MaxPool2d(k, s, p)
        terms = inputs // groups * k * k
        return lambda shape: self._product(terms, bias, (outputs, *pooled(shape)[1:]))

    def ConvTranspose2d(self, inputs: int, outputs: int, k: int, s: int) -> Any:
        if k != s:
            raise NotImplementedError(f"windows of {k} at distance {s} overlap, or do not touch")
        return lambda shape: self._product(
            inputs, True, (outputs, *(s * n for n in shape[1:])), k * k
        )

    def Linear(self, inputs: int, outputs: int, bias: bool = True) -> Any:
        def product(shape: Shape) -> Shape:
            self.parameters += (inputs + bias) * outputs
            self._count(inputs, (*shape[:-1], outputs))
            return (*shape[:-1], outputs)

        return product

    def MaxPool2d(self, k: int, s: int, p: int = 0) -> Any:
        return lambda shape: (shape[0], *((n + 2 * p - k) // s + 1 for n in shape[1:]))

    def AdaptiveAvgPool2d(self, size: int) -> Any:
        return lambda shape: (shape[0], size, size)

    def BatchNorm2d(self, channels: int) -> Any:
        self.parameters += 2 * channels
        return lambda shape: shape

    def LayerNorm(self, width: int) -> Any:
        self.parameters += 2 * width
        return lambda shape: shape

    def Flatten(self, start: int = 1, end: int = -1) -> Any:
        return lambda shape: (math.prod(shape),) if start else shape  # 0: the batch's axis too

    def ReLU(self) -> Any:
        return lambda shape: shape

    ReLU6 = GELU = ReLU

    def Dropout(self, p: float) -> Any:
        return lambda shape: shape
