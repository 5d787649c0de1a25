"""The program of launched processes: they train together, and one alone on all batches.

Their losses are the same up to rounding.  In training that may grow, since a ReLU or a maximum that
goes the other way is no small difference: where losses are further apart than they should be, they
must be no further than those of one process alone to which the images of a batch come in other
orders.  With float64 there is no such excuse: 50 steps of a ResNet-18 do not take its roundings
beyond 1e-5.

    mpiexec -n 2 python tests/launched_training.py mlp small 50
"""

import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from cuda_device import on_host
from example_networks import ALEXNET, MLP, RESNET

import minigraph as mg
from minigraph import nn, ops, optim

WORLD = mg.distributed.world()
CLASSES = 10
CLOSE = 1e-5  # relative
ORDERS = 3
AS_ITSELF = 4  # times as far apart as one process from itself, in few orders, is chance


class Case(NamedTuple):
    """A network: how it is made, and what it is trained on.

    shape  of an example
    count  examples of a process
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    count: int
    lr: float
    dtype: str = "float32"


def small():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        nn.Linear(8 * 5 * 5, CLASSES),
    )


def resnet18():
    return RESNET.resnet18(CLASSES)


CASES = {
    "mlp": Case(lambda: MLP.MLP(784, CLASSES, dropout=0), (784,), 16, 0.05),
    "small": Case(small, (3, 16, 16), 4, 1e-3),
    "alexnet": Case(lambda: ALEXNET.AlexNet(CLASSES, dropout=0), (3, 64, 64), 2, 3e-3),
    "resnet18": Case(resnet18, (3, 64, 64), 4, 1e-3),
    "resnet18-float64": Case(resnet18, (3, 32, 32), 2, 1e-3, "float64"),
}


def network(case, world):
    """Return a network in the dtype of a case, with the statistics of all processes."""
    nn.init.manual_seed(world.rank)  # the parameters of process 0 count
    net = case.make()
    for module in net.modules():
        for name, value in [*vars(module).items()]:
            if isinstance(value, mg.Parameter):
                setattr(module, name, type(value)(value.numpy(), dtype=case.dtype))
        if isinstance(module, nn.BatchNorm2d):
            module.synchronize = world
    return net


def train(case, world, images, labels, steps, device="cpu"):
    """Return the loss of each step, the mean over the processes of `world`, and all state."""
    net = network(case, world)
    x = mg.input("x", images.shape, images.dtype)
    y = mg.input("y", labels.shape, labels.dtype)
    loss = ops.cross_entropy(net(x), y)
    sgd = optim.SGD(net.parameters(), case.lr, momentum=0.9)
    updates = {**sgd.minimize(loss, reduce=world), **net.updates()}
    options = {"graph_opt_level": 3, "num_threads": 1, "autotune": "cached"}
    mean = ops.all_reduce(loss, world, "mean")
    step = mg.comp_graph(device, options).compile([x, y], mean, updates)
    return [float(on_host(step(images, labels))) for _ in range(steps)], net.state_dict()


def apart(losses, others):
    """Return the largest relative difference."""
    return max(abs(a - b) / b for a, b in zip(losses, others, strict=True))


def compare(name, steps, device="cpu"):
    """Train in all processes together and in process 0 alone; print how far losses are apart."""
    case = CASES[name]
    rng, total = np.random.default_rng(0), case.count * WORLD.size
    x = rng.standard_normal((total, *case.shape), "float32").astype(case.dtype)
    y = rng.integers(0, CLASSES, total)
    mine = slice(WORLD.rank * case.count, (WORLD.rank + 1) * case.count)
    together, state = train(case, WORLD, x[mine], y[mine], steps, device)
    bits = WORLD.gather([together, *(value.tobytes() for value in state.values())])
    assert all(each == bits[0] for each in bits), f"{name}: the bits of processes differ"
    if WORLD.rank > 0:
        return
    one = mg.distributed.World()
    alone, _ = train(case, one, x, y, steps, device)
    differences = apart(together, alone)
    print(f"{name}: from {alone[0]:.3f} to {alone[-1]:.3f}, apart by {differences:.1e}")
    if differences >= CLOSE:
        assert case.dtype == "float32"
        orders = [rng.permutation(total) for _ in range(ORDERS)]
        itself = max(apart(train(case, one, x[o], y[o], steps, device)[0], alone) for o in orders)
        print(f"{name}: one process is apart from itself by {itself:.1e}")
        assert differences < AS_ITSELF * itself


if __name__ == "__main__":
    *names, steps = sys.argv[1:]
    for name in names:
        compare(name, int(steps))
