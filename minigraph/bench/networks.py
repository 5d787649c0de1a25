"""The networks, written once for minigraph and PyTorch; a user's network comes from a file.

A network is a function of a library, which has layers under torch.nn's names and those of
`with_blocks`.  AlexNet, the ResNets and the GPT are those of the examples, layer by layer.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args

from minigraph.errors import GraphError

Shape = tuple[int, ...]  # of one example, without the batch
Network = Callable[[Any], Any]
Labels = Literal["examples", "pixels", "tokens"]
DROPOUT = 0.5


class NetworkSpec(NamedTuple):
    """A network, and the examples for its training.

    shape    of an example
    quick    shape of an example in a quick run
    classes  number of classes
    labels   whether an example, each pixel or each token has a label
    batches  examples in a step: on a CPU, in a quick run on a CPU, and both on a GPU, which needs
             more
    """

    title: str
    network: Network
    shape: Shape = (3, 224, 224)
    quick: Shape = (3, 64, 64)
    classes: int = 1000
    labels: Labels = "examples"
    batches: tuple[int, int, int, int] = (32, 32, 32, 32)


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


def mobilenetv2(nn: Any, stages: Sequence[tuple[int, int, int, int]] = INVERTED) -> Any:
    """MobileNetV2 as in torchvision, or with other stages."""
    layers = [*_normed(nn, 3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    for expansion, width, count, stride in stages:
        for i in range(count):
            layers.append(_inverted(nn, channels, width, stride if i == 0 else 1, expansion))
            channels = width
    layers += [*_normed(nn, channels, 1280, 1, 1), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers)


def _inverted(nn: Any, inputs: int, outputs: int, stride: int, expansion: int) -> Any:
    expanded = inputs * expansion
    body = [] if expansion == 1 else [*_normed(nn, inputs, expanded, 1, 1), nn.ReLU6()]
    body += [*_normed(nn, expanded, expanded, 3, stride, groups=expanded), nn.ReLU6()]
    block = nn.Sequential(*body, *_normed(nn, expanded, outputs, 1, 1))
    return nn.Added(block) if stride == 1 and inputs == outputs else block


def _normed(nn: Any, inputs: int, outputs: int, k: int, s: int, groups: int = 1) -> list[Any]:
    conv = nn.Conv2d(inputs, outputs, k, s, k // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def unet(nn: Any, width: int = 32, depth: int = 3, classes: int = 4) -> Any:
    """A U-Net (Ronneberger et al., 2015) with padding and batch norms, halved `depth` times."""

    def convolutions(inputs: int, outputs: int) -> list[Any]:
        pairs = ((inputs, outputs), (outputs, outputs))
        return [layer for a, b in pairs for layer in (*_normed(nn, a, b, 3, 1), nn.ReLU())]

    inner = nn.Sequential(*convolutions(width << depth - 1, width << depth))
    for i in reversed(range(depth)):
        outputs = width << i
        upsampling = nn.ConvTranspose2d(2 * outputs, outputs, 2, 2)
        lower = nn.Sequential(nn.MaxPool2d(2, 2), inner, upsampling)
        encoder = convolutions(3 if i == 0 else outputs // 2, outputs)
        inner = nn.Sequential(*encoder, nn.Beside(lower), *convolutions(2 * outputs, outputs))
    return nn.Sequential(inner, nn.Conv2d(width, classes, 1))


CONTEXT, VOCABULARY = 64, 96  # tokens in a row, and different tokens: printable ASCII


def gpt(nn: Any, layers: int = 4, width: int = 128, heads: int = 4) -> Any:
    """A GPT of characters with the blocks of GPT-2 (Radford et al., 2019): scores per token."""
    blocks = []
    for _ in range(layers):
        attention = nn.Sequential(nn.LayerNorm(width), nn.CausalAttention(width, heads))
        dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        blocks += [nn.Added(attention), nn.Added(nn.Sequential(nn.LayerNorm(width), dense))]
    tokens = nn.Tokens(VOCABULARY, CONTEXT, width)
    scores = nn.Linear(width, VOCABULARY, bias=False)
    return nn.Sequential(tokens, *blocks, nn.LayerNorm(width), scores, nn.Flatten(0, 1))


def lstm(nn: Any, width: int = 256, layers: int = 2) -> Any:
    """LSTMs that predict characters: scores per token."""
    states = nn.States(nn.LSTM(width, width, layers, batch_first=True))
    scores = nn.Linear(width, VOCABULARY)
    return nn.Sequential(nn.Embedding(VOCABULARY, width), states, scores, nn.Flatten(0, 1))


def with_blocks(nn: Any, functions: Any) -> Any:
    """Return a library like torch.nn with the further modules of the networks.

    functions  has `concat` and `scaled_dot_product_attention`, of torch or of minigraph
    """

    def combiner(combine: Callable[..., Any]) -> type:
        """Return a layer that computes combine(x, *(body(x) for body in bodies))."""

        class Combined(nn.Module):  # type: ignore[misc]
            def __init__(self, *bodies: Any) -> None:
                super().__init__()
                self.bodies = nn.ModuleList(bodies)

            def forward(self, x: Any) -> Any:
                return combine(x, *(body(x) for body in self.bodies))

        return Combined

    class Tokens(nn.Module):  # type: ignore[misc]
        """A vector for each token, plus one for its position."""

        def __init__(self, count: int, length: int, width: int) -> None:
            super().__init__()
            self.tokens = nn.Embedding(count, width)
            self.positions = nn.Embedding(length, width)

        def forward(self, x: Any) -> Any:
            return self.tokens(x) + self.positions.weight

    class CausalAttention(nn.Module):  # type: ignore[misc]
        """Causal self-attention of rows (n, t, width)."""

        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.to_heads, self.from_heads = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            n, t, width = x.shape
            qkv = self.to_heads(x).reshape(n, t, 3, self.heads, width // self.heads)
            q, k, v = (qkv[:, :, i].swapaxes(1, 2) for i in range(3))
            y = functions.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.from_heads(y.swapaxes(1, 2).reshape(n, t, width))

    relu = nn.ReLU()
    blocks = {
        "Residual": combiner(lambda x, body, shortcut: relu(body + shortcut)),
        "Added": combiner(lambda x, body: x + body),
        "Beside": combiner(lambda x, body: functions.concat([x, body], 1)),  # along the channels
        "States": combiner(lambda x, states: states[0]),  # of all steps of a recurrent layer
        "Tokens": Tokens,
        "CausalAttention": CausalAttention,
    }
    return SimpleNamespace(**{**vars(nn), **blocks})


def without_dropout(nn: Any) -> Any:
    kinds = (name for name in vars(nn) if name.startswith("Dropout"))
    none = dict.fromkeys(kinds, lambda *args, **kwargs: nn.Dropout(0.0))
    return SimpleNamespace(**{**vars(nn), **none})


# ---------------------------------------------------------------- users' networks

SUFFIX, MODEL = ".py", ".onnx"


def is_file(model: str) -> bool:
    return model.endswith((SUFFIX, MODEL))


def name_of(model: str) -> str:
    """Return the name of a model in results; for a file, its name without folder and suffix."""
    return Path(model).stem if is_file(model) else model


@functools.lru_cache
def read_network(path: str) -> NetworkSpec:
    """Return the network of a file, which is run once; raise GraphError for missing definitions.

    The file defines `network(nn)`, `shape` and `classes`, and may define `batch` and `labels`, as
    in `NetworkSpec`.  `nn` is minigraph's or torch's, with the blocks of `with_blocks`.
    """
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:  # as if Python ran the file
        sys.path.insert(0, folder)
    try:
        definitions = runpy.run_path(path, run_name=Path(path).stem)
    except OSError as error:
        raise GraphError(f"{path} cannot be read: {error.strerror}") from None
    values: dict[str, Any] = {"batch": 32, "labels": "examples", **definitions}
    axes = ("tokens",) if values["labels"] == "tokens" else ("channels", "height", "width")
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "labels": (lambda x: x in get_args(Labels), f"one of {', '.join(get_args(Labels))}"),
        "shape": (
            lambda x: isinstance(x, tuple) and len(x) == len(axes) and all(map(_is_count, x)),
            f"a tuple of integers: {', '.join(axes)}",
        ),
        "classes": (_is_count, "the number of classes, an integer"),
        "batch": (_is_count, "the number of examples in a step, an integer"),
        "network": (callable, "a function of a library, such as minigraph.nn"),
    }
    for name, (fits, expected) in checks.items():
        if name not in values:
            raise GraphError(f"{path} defines no `{name}`: {expected}")
        if not fits(values[name]):
            raise GraphError(f"{path}: `{name}` must be {expected}, not {values[name]!r}")
    labels, shape, classes, batch, network = map(values.__getitem__, checks)
    return NetworkSpec(name_of(path), network, shape, shape, classes, labels, (batch,) * 4)


def _is_count(x: Any) -> bool:
    return type(x) is int and x > 0
