"""Small networks of one's own classes, and what they compute."""

import numpy as np

import minigraph as mg
from minigraph import nn, ops

IMAGES = np.random.default_rng(0).standard_normal((4, 4, 9, 10), np.float32)


def compiled(inputs, outputs, updates=None):
    return mg.comp_graph("reference").compile(inputs, outputs, updates=updates)


def result(module, array=IMAGES):
    x = mg.input("x", array.shape, array.dtype)
    return compiled([x], module(x))(array)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)

    def forward(self, x):
        return ops.relu(self.bn1(self.conv1(x))) + x


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer1 = nn.Sequential(Block(width), Block(width))
        self.fc = nn.Linear(width, 3)

    def forward(self, x):
        return self.fc(self.layer1(x).mean((2, 3)))
