"""What the benchmarks run: training steps of networks, and expressions on large arrays."""

import importlib.util
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph import nn, ops, optim

ROOT = Path(__file__).resolve().parent.parent
BATCH = {"alexnet": 32, "resnet18": 16, "resnet50": 8}
LENGTH = 1 << 24


def images(batch):
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(batch, 3, 224, 224)).astype(np.float32)
    return pixels, rng.integers(0, 1000, batch)


def digits():
    rng = np.random.default_rng(0)
    return rng.normal(size=(32, 784)).astype(np.float32), rng.integers(0, 10, 32)


def arrays(*shapes):
    """Return arrays of numbers in [0, 1)."""
    rng = np.random.default_rng(0)
    return [rng.random(shape, dtype=np.float32) for shape in shapes]


# ---------------------------------------------------------------- networks


def example(name):
    """Return the network of an example."""
    folder = "alexnet" if name == "alexnet" else "resnet"
    path = ROOT / "examples" / folder / "model.py"
    spec = importlib.util.spec_from_file_location("model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.AlexNet() if name == "alexnet" else getattr(module, name)()


def training(case):
    """Return (inputs, outputs, updates, arguments) of a training step with Adam."""
    data = digits() if case == "mlp" else images(BATCH[case])
    if case == "mlp":
        net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    else:
        net = example(case)
    x = mg.input("x", data[0].shape)
    labels = mg.input("labels", data[1].shape, "int64")
    loss = ops.cross_entropy(net(x), labels)
    adam = optim.Adam(net.parameters(), lr=1e-4)
    return [x, labels], loss, {**adam.minimize(loss), **net.updates()}, data


# ---------------------------------------------------------------- expressions


def chain(a, b, c):
    """Twelve elementwise ops, two of them transcendental."""
    return ops.tanh(a * b + c) * ops.exp(-ops.abs(a - c)) / (1 + a * a) + ops.maximum(b, c) * 0.5


def layer_norm(x, weight, bias):
    return ops.layer_norm(x, x.shape[-1:], weight, bias)


def batch_norm_relu(x, weight, bias):
    return ops.relu(ops.batch_norm(x, np.zeros(64), np.ones(64), weight, bias, training=True))


def batch_norm_relu_gradients(x, weight, bias, dy):
    y = batch_norm_relu(x, weight, bias)
    return mg.grad((y * dy).sum(), [x, weight, bias])


IMAGE = (16, 64, 112, 112)
EXPRESSIONS = {
    "a*b": (lambda a, b: a * b, [(LENGTH,)] * 2),
    "a+b": (lambda a, b: a + b, [(LENGTH,)] * 2),
    "a*b*c": (lambda a, b, c: a * b * c, [(LENGTH,)] * 3),
    "a*b+c": (lambda a, b, c: a * b + c, [(LENGTH,)] * 3),
    "chain": (chain, [(LENGTH,)] * 3),
    "softmax": (lambda x: ops.softmax(x), [(4096, 4096)]),
    "layer_norm": (layer_norm, [(8192, 1024), (1024,), (1024,)]),
    "batch_norm+relu": (batch_norm_relu, [IMAGE, (64,), (64,)]),
    "batch_norm+relu backward": (batch_norm_relu_gradients, [IMAGE, (64,), (64,), IMAGE]),
}
ADAM = [(4096, 9216), (4096, 4096), (1000, 4096), (384, 192, 3, 3), (4096,)]  # most of AlexNet


def adam():
    """Return (inputs, outputs, updates, arguments) of Adam on given gradients alone."""
    parameters = [mg.Parameter(value, f"p{i}") for i, value in enumerate(arrays(*ADAM))]
    gradients = [mg.Parameter(value, f"g{i}") for i, value in enumerate(arrays(*ADAM))]
    loss = sum((p * g).sum() for p, g in zip(parameters, gradients, strict=True))
    updates = optim.Adam(parameters, lr=1e-4).minimize(loss)
    return [], [], updates, ()


def function(case, options):
    """Return the compiled function of a case and the arguments to call it with."""
    if case in EXPRESSIONS:
        build, shapes = EXPRESSIONS[case]
        inputs = [mg.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
        made = inputs, build(*inputs), {}, arrays(*shapes)
    else:
        made = adam() if case == "adam" else training(case)
    inputs, outputs, updates, args = made
    return mg.comp_graph("cpu", options).compile(inputs, outputs, updates), args
