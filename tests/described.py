"""A training step, compiled, for the tests of descriptions and pages."""

import numpy as np
from example_networks import RESNET

import minigraph as mg
from minigraph import nn, ops, optim

BATCH, SIZE = 2, 8
BUDGET = 4.0  # seconds of measuring


class Small(nn.Module):
    """A ResNet with two blocks."""

    def __init__(self):
        super().__init__()
        self.conv1 = RESNET.conv(3, 16, 3)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(RESNET.BasicBlock(16, 16), RESNET.BasicBlock(16, 16))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        x = self.layer1(ops.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean(axis=(2, 3)))


def training_step(net, level, size=SIZE, batch=BATCH, **options):
    """Return a step of Adam, and arrays to call it with."""
    x, y = mg.input("images", (batch, 3, size, size)), mg.input("labels", (batch,), "int64")
    loss = ops.cross_entropy(net(x), y)
    updates = {**optim.Adam(net.parameters(), 1e-3).minimize(loss), **net.updates()}
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune.budget": BUDGET, **options})
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 3, size, size), "float32")
    return cg.compile([x, y], loss, updates), (images, rng.integers(0, 10, batch))
