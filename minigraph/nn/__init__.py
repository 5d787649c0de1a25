"""Layers, with the arguments, initialisation and state names of `torch.nn`."""

from minigraph import errors
from minigraph.graph import Parameter as Parameter
from minigraph.nn import init
from minigraph.nn.activation import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from minigraph.nn.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from minigraph.nn.container import ModuleDict, ModuleList, Sequential
from minigraph.nn.images import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AvgPool1d,
    AvgPool2d,
    CircularPad2d,
    ConstantPad2d,
    MaxPool1d,
    MaxPool2d,
    ReflectionPad1d,
    ReflectionPad2d,
    ReplicationPad1d,
    ReplicationPad2d,
    Upsample,
    UpsamplingBilinear2d,
    UpsamplingNearest2d,
    ZeroPad2d,
)
from minigraph.nn.init import manual_seed
from minigraph.nn.linear import Conv1d, Conv2d, ConvTranspose2d, Embedding, Linear
from minigraph.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from minigraph.nn.module import Module, ModuleState
from minigraph.nn.normalization import (
    BatchNorm1d,
    BatchNorm2d,
    GroupNorm,
    InstanceNorm2d,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
)
from minigraph.nn.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from minigraph.nn.stateless import Dropout, Dropout2d, Flatten, Identity, PixelShuffle, Unflatten

Buffer = ModuleState  # as torch calls it

__all__ = sorted(["init", *[n for n, value in globals().items() if isinstance(value, type)]])
errors.install_hints(__name__, "layers")
