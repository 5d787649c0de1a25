"""Layers, with the arguments, initialisation and state names of `torch.nn`."""

from minigraph.nn import init
from minigraph.nn.conv import Conv2d, Linear
from minigraph.nn.init import manual_seed
from minigraph.nn.module import Module, ModuleState, Sequential
from minigraph.nn.normalization import BatchNorm2d, LayerNorm, LocalResponseNorm
from minigraph.nn.stateless import (
    AdaptiveAvgPool2d,
    AvgPool2d,
    Dropout,
    Flatten,
    Hardswish,
    Identity,
    MaxPool2d,
    ReLU,
)

Buffer = ModuleState  # as torch calls it
