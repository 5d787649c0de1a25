"""The cases: expressions on large arrays, training steps and predictions, with their data."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import minigraph as mg
from minigraph.bench import networks
from minigraph.bench.networks import MODEL, NetworkSpec, Shape, is_file, name_of, read_network
from minigraph.data import Synthetic

Array = npt.NDArray[Any]
BATCHES = 2  # of different images, which steps use in turn
LEARNING_RATE = 1e-4
LOSSES = 20  # steps whose losses are compared
# A GPU needs larger arrays than a CPU to be busy.
FLOATS = {"cpu": 1 << 24, "cuda": 1 << 28}  # in each array of an expression
SQUARE = {"cpu": 1 << 12, "cuda": 1 << 14}  # rows, and columns, of softmax's matrix


@dataclass(frozen=True)
class Precision:
    """The precision of convolutions and matrix products.

    options    of minigraph
    width      bytes of an element of a result
    jax        JAX's name; "" if JAX lacks the precision
    tolerance  largest difference of two libraries' predictions, relative to the largest score
    """

    options: Mapping[str, str]
    width: int
    jax: str = ""
    tolerance: float = 1e-3


DEFAULT_PRECISION = "float32"
PRECISIONS = {
    "float32": Precision({}, 4, "highest"),
    "tf32": Precision({"precision": "tf32"}, 4, "tensorfloat32", 1e-2),
    "bf16x3": Precision({"precision": "bf16x3"}, 4),  # the others in float32
    "bfloat16": Precision({"amp": "bfloat16"}, 2, tolerance=1e-1),
    "float16": Precision({"amp": "float16"}, 2, tolerance=1e-2),
}


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Expression:
    """A formula on arrays of float32.

    formula  takes a library's functions under NumPy's names, then the arrays
    """

    title: str
    formula: Callable[..., Any]
    shapes: tuple[Shape, ...]
    images: int = 0

    def data(self) -> list[Array]:
        rng = np.random.default_rng(0)
        return [rng.random(shape, dtype=np.float32) for shape in self.shapes]


def expressions(device: str) -> dict[str, Expression]:
    kind = device.partition(":")[0]
    three, floats, n = ((FLOATS[kind],),) * 3, f"{FLOATS[kind] >> 20}M floats", SQUARE[kind]
    return {
        "abc": Expression(f"a * b * c, {floats}", lambda xp, a, b, c: a * b * c, three),
        "abplusc": Expression(f"a * b + c, {floats}", lambda xp, a, b, c: a * b + c, three),
        "chain": Expression(
            f"14 ops with exp and tanh, {floats}",
            lambda xp, a, b, c: (
                xp.tanh(a * b + c) * xp.exp(-xp.abs(a - c)) / (1 + a * a) + xp.maximum(b, c) * 0.5
            ),
            three,
        ),
        "softmax": Expression(f"softmax, {n} x {n}", lambda xp, x: xp.softmax(x, -1), ((n, n),)),
        "layernorm": Expression(
            f"layer norm, {n} x {n}", lambda xp, x: xp.layer_norm(x, (n,)), ((n, n),)
        ),
    }


EXPRESSIONS = expressions("cpu")


# ---------------------------------------------------------------- networks


RESNET18 = functools.partial(networks.resnet, depths=(2, 2, 2, 2), bottleneck=False)
RESNET50 = functools.partial(networks.resnet, depths=(3, 4, 6, 3), bottleneck=True)
DIGIT, CIFAR, ROW, TEXT = (1, 28, 28), (3, 32, 32), (networks.CONTEXT,), (100,)
TOKENS = networks.VOCABULARY
NETWORKS = {
    "mlp": NetworkSpec("MLP 784-128-10", networks.mlp, DIGIT, DIGIT, 10),
    "alexnet": NetworkSpec("AlexNet", networks.alexnet, batches=(32, 8, 256, 64)),
    "resnet18": NetworkSpec("ResNet-18", RESNET18, batches=(16, 4, 256, 32)),
    "resnet50": NetworkSpec("ResNet-50", RESNET50, batches=(8, 2, 128, 16)),
    "mobilenetv2": NetworkSpec("MobileNetV2", networks.mobilenetv2, batches=(16, 4, 256, 32)),
    "resnet20": NetworkSpec(
        "ResNet-20", networks.resnet20, CIFAR, CIFAR, 10, batches=(128, 32, 1024, 128)
    ),
    "unet": NetworkSpec(
        "U-Net", networks.unet, (3, 128, 128), (3, 64, 64), 4, "pixels", (4, 2, 64, 16)
    ),
    "gpt": NetworkSpec("GPT 4 x 128", networks.gpt, ROW, ROW, TOKENS, "tokens", (32, 8, 256, 32)),
    "lstm": NetworkSpec(
        "LSTM 2 x 256", networks.lstm, TEXT, TEXT, TOKENS, "tokens", (32, 8, 256, 32)
    ),
}
# By name: the network, and the images in a batch.
PREDICTIONS = {
    f"{network}-{images}": (network, images)
    for network in ("alexnet", "resnet18", "resnet50")
    for images in (1, 32)
}
NAMES = (*EXPRESSIONS, *NETWORKS, *PREDICTIONS)
GROUPS: dict[str, Iterable[str]] = {
    "expressions": EXPRESSIONS,
    "networks": NETWORKS,
    "inference": PREDICTIONS,
}


@dataclass(frozen=True)
class NetworkCase:
    """A network with batches of examples.

    shape   of an example
    images  in a batch, or rows of tokens
    """

    title: str
    spec: NetworkSpec
    shape: Shape
    images: int

    def network(self, nn: Any) -> Any:
        return self.spec.network(nn)

    def data(self) -> list[tuple[Array, Array]]:
        """Return batches of images, which show the pattern of their class, or texts, and labels."""
        n = self.images
        if self.spec.labels == "tokens":
            return self._texts()
        examples = Synthetic(self.shape, self.spec.classes, n * BATCHES)
        # Labels repeat 0, 1, ..., so neighbours have different labels.
        images, labels = zip(*(examples[i] for i in range(len(examples))), strict=True)
        if self.spec.labels == "pixels":
            labels = tuple(self._brightness(image) for image in images)
        return [
            (np.stack(images[i : i + n]), np.array(labels[i : i + n], np.int64))
            for i in range(0, len(examples), n)
        ]

    def _brightness(self, image: Array) -> Array:
        """Return the class of each pixel: brightness in `classes` steps of equally many pixels."""
        mean = image.mean(0)
        steps = np.quantile(mean, np.arange(1, self.spec.classes) / self.spec.classes)
        return np.searchsorted(steps, mean)

    def _texts(self) -> list[tuple[Array, Array]]:
        """Return rows in which each token determines the next, and the next tokens as labels."""
        (length,) = self.shape
        start = np.random.default_rng(0).integers(1, self.spec.classes, (BATCHES, self.images, 1))
        rows = 1 + (start - 1 + np.arange(length + 1) * start) % (self.spec.classes - 1)
        return [(batch[:, :-1].copy(), batch[:, 1:].reshape(-1)) for batch in rows]


@dataclass(frozen=True)
class ModelFile:
    """The results of an ONNX model for a batch of random inputs.

    batch  size of the batch if it is symbolic in the file
    """

    path: str
    batch: int

    @functools.cached_property
    def _arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = mg.onnx.command.random_inputs(self.path, self.batch)
        return arrays  # the file is read once

    @property
    def images(self) -> int:
        """The size of the batch: the first size of the first input."""
        return next((len(x) for x in self._arrays.values() if x.ndim), 1)

    @property
    def title(self) -> str:
        return f"{name_of(self.path)} predicts {self.images}"

    def data(self) -> dict[str, Array]:
        return self._arrays

    def numbers(self, results: Any) -> list[float]:
        each = results if isinstance(results, list) else [results]
        return [float(number) for y in each for number in np.ravel(y)]


class TrainingCase(NetworkCase):
    """One step of training a network with Adam and cross entropy."""


class Prediction(NetworkCase):
    """The scores that a trained network gives to a batch."""


def first_value(name: str, shape: Shape) -> Array:
    """Return a parameter's first value, which depends only on name and shape, not on the library.

    Weights of convolutions and products are normal, those of BatchNorm ones, biases zeros.  The
    running statistics of BatchNorm, which only predictions use, are close to its inputs' own.
    """
    if name.endswith("running_var"):
        return np.random.default_rng([*name.encode()]).uniform(0.1, 0.3, shape).astype(np.float32)
    if name.endswith("running_mean"):
        return np.random.default_rng([*name.encode()]).uniform(-0.1, 0.1, shape).astype(np.float32)
    if len(shape) < 2:
        return np.full(shape, name.endswith("weight"), np.float32)
    normal = np.random.default_rng([*name.encode()]).standard_normal(shape, np.float32)
    # The variance of PyTorch's own first weights.  With six times the variance (He et al., 2015)
    # AlexNet's losses in PyTorch's two memory formats are 2 % apart after LOSSES steps.
    return normal * np.float32(1 / math.sqrt(3 * math.prod(shape[1:])))


Case = Expression | TrainingCase | Prediction | ModelFile


def case(
    name: str, batch_size: int | None = None, quick: bool = False, device: str = "cpu"
) -> Case:
    """Return the case called `name`; a quick one has fewer and smaller images.

    name        of the case, or the file of a user's network
    batch_size  of a training step; a prediction's is part of its name
    """
    if name in EXPRESSIONS:
        return expressions(device)[name]
    if name.endswith(MODEL):
        return ModelFile(name, batch_size or 1)
    network, images = PREDICTIONS.get(name, (name, 0))
    spec = read_network(name) if is_file(name) else NETWORKS[network]
    shape = spec.quick if quick else spec.shape
    if name in PREDICTIONS:
        title = f"{spec.title} predicts {images}{_size(shape)}"
        return Prediction(title, spec, shape, images)
    batch = batch_size or spec.batches[2 * (device != "cpu") + quick]
    title = f"{spec.title}, batch {batch}" + _size(shape) * (name != "mlp")
    return TrainingCase(title, spec, shape, batch)


def _size(shape: Shape) -> str:
    return f" x {shape[0]}" if len(shape) == 1 else f", {shape[1]} x {shape[2]}"
