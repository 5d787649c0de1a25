"""What launched processes run: they train together, and one alone on the batches of all.

Their losses are the same.

    mpiexec -n 2 python tests/launched_training.py mlp small 50
"""

import sys

import numpy as np
from example_networks import MLP

import minigraph as mg
from minigraph import nn, ops, optim

WORLD = mg.distributed.world()
CLASSES = 10
# How a network is made, the shape of an example, examples of a process, and the learning rate.
NETWORKS = {
    "mlp": (lambda: MLP.MLP(784, CLASSES, dropout=0), (784,), 16, 0.05),
    "small": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
            nn.Linear(8 * 5 * 5, CLASSES),
        ),
        *((3, 16, 16), 4, 1e-3),
    ),
}


def train(name, world, batches):
    """Return the loss of each step, the mean over the processes of `world`, and all state."""
    make, shape, _, lr = NETWORKS[name]
    nn.init.manual_seed(world.rank)  # the parameters of process 0 count
    net = make()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.synchronize = world
    images = mg.input("images", (None, *shape))
    labels = mg.input("labels", (None,), "int64")
    loss = ops.cross_entropy(net(images), labels)
    sgd = optim.SGD(net.parameters(), lr, momentum=0.9)
    updates = {**sgd.minimize(loss, reduce=world), **net.updates()}
    options = {"graph_opt_level": 3, "num_threads": 1, "autotune": "cached"}
    mean = ops.all_reduce(loss, world, "mean")
    step = mg.comp_graph("cpu", options).compile([images, labels], mean, updates)
    losses = [float(step(*batch)) for batch in batches]
    return losses, net.state_dict()


def compare(name, steps):
    """Train in all processes together and in each alone; print by how much the losses differ."""
    _, shape, count, _ = NETWORKS[name]
    rng, total = np.random.default_rng(0), count * WORLD.size
    x, y = rng.standard_normal((total, *shape), "float32"), rng.integers(0, CLASSES, total)
    mine = slice(WORLD.rank * count, (WORLD.rank + 1) * count)
    together, state = train(name, WORLD, [(x[mine], y[mine])] * steps)
    bits = WORLD.gather([together, *(value.tobytes() for value in state.values())])
    assert all(each == bits[0] for each in bits), f"{name}: the bits of processes differ"
    if WORLD.rank == 0:
        alone, _ = train(name, mg.distributed.World(), [(x, y)] * steps)
        worst = max(abs(a - b) / b for a, b in zip(together, alone, strict=True))
        print(f"{name}: from {alone[0]:.3f} to {alone[-1]:.3f}, apart by {worst:.1e}")
        assert worst < 1e-5


if __name__ == "__main__":
    *names, steps = sys.argv[1:]
    for name in names:
        compare(name, int(steps))
