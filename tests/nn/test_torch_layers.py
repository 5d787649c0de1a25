"""Layers and activations against torch's of the same name and arguments."""

import re

import numpy as np
import pytest
from beside_torch import rows
from needs import needs_compiler
from torch_modules import assert_torchs, floats, integers

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")

SMALL = np.concatenate([floats(2, 3, 4, low=-1), floats(1, 3, 4, low=-9, high=9)])
INF, NAN = np.inf, np.nan
LINE = np.array([[-40.0, -20, -3, -1, -0.0, 0.0, 0.5, 1, 3, 6, 19.9, 20, 20.1, 40, INF, NAN]])
FINITE, NUMBERS = LINE[:, :-2], LINE[:, :-1]
EXTREMES = np.array(
    [
        *([1.0, 2, 3, 4], [800, -800, 0, 799], [-INF, 1, -INF, 2]),
        *([-INF, -INF, -INF, -INF], [INF, 1, 2, 3], [NAN, 1, 2, 3]),
    ]
)

# Each line has what layers are called with, and the layers.  In the limit of GELU, SiLU and Mish
# PyTorch and we multiply infinity by 0 in different orders; PyTorch's gradient of ReLU6 for NaN
# depends on the place in a vector.
ACTIVATIONS = """
SMALL: ReLU(); ReLU6(); Hardswish(); Hardsigmoid(); Mish(); LeakyReLU()
SMALL: LeakyReLU(negative_slope=0.3); ELU(); ELU(alpha=0.7); PReLU(); PReLU(num_parameters=3)
SMALL: GELU(); GELU(approximate="tanh"); SiLU(); Softplus(); Softplus(beta=2.0, threshold=5.0)
SMALL: Sigmoid(); Tanh(); Softmax(dim=1); Softmax(dim=-1); LogSoftmax(dim=2)
EXTREMES: Softmax(dim=0); Softmax(dim=1); LogSoftmax(dim=0); LogSoftmax(dim=1)
LINE: ReLU(); LeakyReLU(); LeakyReLU(negative_slope=-0.3); Hardswish(); Sigmoid(); Softplus()
LINE: Softplus(beta=2.5); Softplus(beta=0.5, threshold=1.0)
NUMBERS: ReLU6(); Hardsigmoid()
FINITE: GELU(); GELU(approximate="tanh"); SiLU(); Mish()
"""


@pytest.mark.parametrize(("xs", "call"), rows(ACTIVATIONS))
def test_activations_are_torchs(xs, call):
    rtol = 1e-3 if "threshold=5" in call else 1e-9  # ours is never less accurate
    rtol = 1e-7 if "Hardsigmoid" in call else rtol  # torch's multiplies by a sixth in float32
    assert_torchs(call, eval(f"[{xs}]"), rtol=rtol)


def test_an_elu_does_not_overflow_where_it_is_not_exponential():
    x = mg.input("x", (2,))
    y = ops.elu(x)
    result = Graph((x,), (y, *mg.grad(y.sum(), [x])))(np.array([1e4, -1e4], "float32"))
    np.testing.assert_array_equal(result, [[1e4, -1], [1, 0]])


IMAGES = floats(2, 4, 5, 6)
TIES = integers(2, 3, 7, 6, below=2).astype(float)
ODD = floats(2, 4, 7, 6)
ODD[0, 0, 3, 2], ODD[0, 1], ODD[0, 2, ::2], ODD[0, 3, 1:5, 1:4] = NAN, -INF, INF, -INF
SIGNAL = floats(2, 4, 7)
TOKENS = integers(3, 4, below=7)
LAYERS = """
TOKENS: Embedding(7, 3); Embedding(7, 3, padding_idx=2); Embedding(7, 3, padding_idx=-3)
floats(3): Linear(3, 2); Linear(3, 2, bias=False)
floats(2, 4, 3): Linear(3, 2); Linear(3, 2, bias=False)
floats(4, 5): BatchNorm1d(5); BatchNorm1d(5, affine=False)
floats(2, 5, 3): BatchNorm1d(5, momentum=None); BatchNorm1d(5, affine=False)
IMAGES: BatchNorm2d(4); BatchNorm2d(4, affine=False)
IMAGES: GroupNorm(2, 4); GroupNorm(1, 4, affine=False); GroupNorm(2, 4, bias=False); RMSNorm((5, 6))
IMAGES: RMSNorm((6,), eps=0.1); RMSNorm((6,), elementwise_affine=False); Dropout2d(0.0)
IMAGES: Conv2d(4, 6, (3, 2)); Conv2d(4, 6, (3, 2), bias=False); Conv2d(4, 6, 1, stride=3)
IMAGES: Conv2d(4, 6, (3, 2), stride=2); Conv2d(4, 6, (3, 2), stride=(3, 1), padding=(1, 2))
IMAGES: Conv2d(4, 6, 3, padding=3); Conv2d(4, 6, (2, 2), dilation=(3, 2), padding=1)
IMAGES: Conv2d(4, 4, 3, groups=4, stride=2, padding=1)
IMAGES: Conv2d(4, 6, (3, 2), stride=2, padding=1, dilation=2, groups=2)
IMAGES[:0]: Conv2d(4, 6, 2)
IMAGES: Conv2d(4, 6, (3, 2), padding="same"); Conv2d(4, 6, (3, 2), padding="valid", stride=2)
IMAGES: Conv2d(4, 6, (3, 2), padding="same", padding_mode="reflect", dilation=2)
IMAGES: Conv2d(4, 6, (3, 2), padding=(2, 1), padding_mode="circular", stride=(1, 2))
IMAGES: Conv2d(4, 6, (3, 2), padding=3, padding_mode="replicate", groups=2, bias=False)
IMAGES: Unflatten(1, (2, 2)); Unflatten(-1, (3, -1, 1)); InstanceNorm2d(4)
IMAGES: InstanceNorm2d(4, affine=True, eps=0.1); ConvTranspose2d(4, 6, 3)
IMAGES: ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)
IMAGES: ConvTranspose2d(4, 6, 3, stride=(2, 3), padding=(0, 1), output_padding=(1, 2), bias=False)
IMAGES: ConvTranspose2d(4, 6, 3, groups=2, dilation=2)
floats(3, 4, 5): GroupNorm(4, 4, eps=0.1)
SIGNAL: Conv1d(4, 6, 3); Conv1d(4, 6, 2, stride=2, padding=1, dilation=3, groups=2, bias=False)
SIGNAL: Conv1d(4, 6, 4, padding="same", dilation=2)
SIGNAL: Conv1d(4, 6, 4, padding="valid", padding_mode="reflect")
SIGNAL: Conv1d(4, 6, 4, padding=2, padding_mode="circular", bias=False)
floats(2, 3, 11): MaxPool1d(3); MaxPool1d(4, stride=3, padding=2, ceil_mode=True); AvgPool1d(3)
floats(2, 3, 11): AvgPool1d(4, stride=3, padding=2, ceil_mode=True)
floats(2, 3, 11): AvgPool1d(3, padding=1, count_include_pad=False); AdaptiveAvgPool1d(4)
floats(2, 3, 11): AdaptiveMaxPool1d(4); AdaptiveMaxPool1d(11)
floats(2, 3, 9, 10): AdaptiveMaxPool2d(1); AdaptiveMaxPool2d(3); AdaptiveMaxPool2d((3, 5))
floats(2, 3, 9, 10): AdaptiveMaxPool2d((4, 7)); AdaptiveMaxPool2d((9, 3))
floats(2, 3, 9, 10): AdaptiveMaxPool2d((None, 4)); AdaptiveMaxPool2d((12, 10))
floats(4, 4, 9, 10): MaxPool2d(3, ceil_mode=True); MaxPool2d((2, 3), stride=(1, 2), padding=(1, 0))
floats(4, 4, 9, 10): AvgPool2d(3, stride=2, padding=1)
floats(4, 4, 9, 10): AvgPool2d(2, ceil_mode=True, count_include_pad=False); AdaptiveAvgPool2d(1)
floats(4, 4, 9, 10): AdaptiveAvgPool2d((None, 4)); LocalResponseNorm(5, alpha=0.01, beta=0.5, k=2.0)
floats(4, 4, 9, 10): LayerNorm((9, 10), eps=0.001, elementwise_affine=False)
floats(2, 3, 4): LayerNorm((4,)); LayerNorm((3, 4)); LayerNorm((2, 3, 4))
floats(2, 5, 3): LocalResponseNorm(1); LocalResponseNorm(2); LocalResponseNorm(9, alpha=0.3, k=1.5)
floats(2, 5, 3, 2): LocalResponseNorm(3); LocalResponseNorm(4, alpha=0.3, beta=0.7, k=1.5)
floats(2, 3, 6, 6): AdaptiveAvgPool2d((6, 6)); AdaptiveAvgPool2d((3, 2)); AdaptiveAvgPool2d((4, 5))
floats(2, 3, 6, 6): AdaptiveAvgPool2d(7); AdaptiveAvgPool2d((13, 1)); AdaptiveAvgPool2d((12, 12))
floats(2, 3, 6, 6): AdaptiveMaxPool2d(7); AdaptiveMaxPool2d((13, 1)); AdaptiveMaxPool2d((12, 12))
ODD: AdaptiveAvgPool2d((3, 4)); AdaptiveMaxPool2d((3, 4))
TIES: AdaptiveMaxPool2d((3, 4))
floats(2, 3, 2, 2): MaxPool2d(3, 2, ceil_mode=True); AvgPool2d(3, 2, ceil_mode=True)
floats(4, 4, 9, 10): LayerNorm((10,), bias=False); Flatten(start_dim=2)
floats(4, 4, 9, 10): Flatten(start_dim=0, end_dim=1); BatchNorm2d(4, affine=False)
floats(4, 4, 9, 10): BatchNorm2d(4, bias=False); BatchNorm2d(4, track_running_stats=False)
floats(4, 4, 9, 10): Dropout(0.0); Identity(two=3)
floats(2, 8, 3, 2): PixelShuffle(2)
"""


POOLINGS = """
2; (3, 2), stride=1; 2, stride=3; 3, stride=2, padding=1; (2, 3), stride=(1, 2), padding=(1, 0)
3, stride=2, ceil_mode=True; 2, stride=2, padding=1, ceil_mode=True; 2, stride=5, ceil_mode=True
3, stride=(3, 4), padding=1, ceil_mode=True; 4, stride=3, padding=2, ceil_mode=True
"""
POOLS = [
    (xs, f"{name}({arguments}{more})")
    for arguments in re.split("[;\n] *", POOLINGS.strip())
    for size in ("5, 6", "7, 4", "8, 8", "10, 9")
    for xs, name, more in (
        *(
            (f"floats(2, 3, {size})", "AvgPool2d", f", count_include_pad={x}")
            for x in (True, False)
        ),
        *((xs, "MaxPool2d", "") for xs in (f"floats(2, 3, {size})", "TIES", "ODD")),
    )
    if size == "5, 6" or xs not in ("TIES", "ODD")
]


@pytest.mark.parametrize(("xs", "call"), POOLS)
def test_pools_are_torchs(xs, call):
    assert_torchs(call, eval(f"[{xs}]"))


@needs_compiler
@pytest.mark.parametrize("level", [0, 3])
def test_adaptive_pools_run_in_native_kernels(level):
    x = mg.input("x", (2, 3, 7, 5))
    y = ops.adaptive_max_pool2d(x, (3, 4))
    cg = mg.comp_graph(options={"graph_opt_level": level})
    assert not cg.compile([x], [y, *mg.grad(y.sum(), [x])]).report().numpy


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch copies the input
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("xs", "call"), rows(LAYERS))
def test_layers_are_torchs(xs, call, training):
    assert_torchs(call, eval(f"[{xs}]"), training)


def test_a_token_of_padding_starts_as_zeros():
    weight = nn.Embedding(5, 3, padding_idx=-2).weight.numpy()
    assert (weight[3] == 0).all()
    assert (weight[[0, 1, 2, 4]] != 0).all()


@pytest.mark.parametrize("dtype", ["int8", "int64"])
@pytest.mark.parametrize("padding_idx", [None, -1])
@pytest.mark.parametrize("level", [0, 3])
def test_a_negative_token_is_an_error_of_vectors_and_of_gradients(level, padding_idx, dtype):
    table = nn.Embedding(5, 3, padding_idx)
    x = mg.input("x", (2, 2), dtype)
    y = table(x)
    for expected in (y, mg.grad(y.sum(), [table.weight])[0]):
        function = mg.comp_graph(options={"graph_opt_level": level}).compile([x], expected)
        function([[0, 4], [4, 1]])
        with pytest.raises(mg.GraphError, match=r"token -1 at \(1, 0\) is not in 0 \.\.\. 4"):
            function([[0, 4], [-1, 1]])


def test_a_token_of_a_small_type_is_compared_with_a_padding_that_it_cannot_be():
    x = mg.input("x", (2,), "uint8")
    y = nn.Embedding(300, 2, padding_idx=-1)(x)
    assert mg.comp_graph("reference").compile([x], y)(np.array([0, 255], "uint8")).all()
