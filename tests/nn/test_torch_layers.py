"""Layers and activations against torch's of the same name and arguments."""

import numpy as np
import pytest
from torch_modules import assert_torchs, floats, integers

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")

SMALL = np.concatenate([floats(2, 3, 4, low=-1), floats(1, 3, 4, low=-9, high=9)])

ACTIVATIONS = [
    ("ReLU", {}),
    ("ReLU6", {}),
    ("Hardswish", {}),
    ("Hardsigmoid", {}),
    ("Mish", {}),
    ("LeakyReLU", {}),
    ("LeakyReLU", {"negative_slope": 0.3}),
    ("ELU", {}),
    ("ELU", {"alpha": 0.7}),
    ("PReLU", {}),
    ("PReLU", {"num_parameters": 3}),
    ("GELU", {}),
    ("GELU", {"approximate": "tanh"}),
    ("SiLU", {}),
    ("Softplus", {}),
    ("Softplus", {"beta": 2.0, "threshold": 5.0}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("Softmax", {"dim": 1}),
    ("Softmax", {"dim": -1}),
    ("LogSoftmax", {"dim": 2}),
]


@pytest.mark.parametrize(("name", "kwargs"), ACTIVATIONS)
def test_activations_are_torchs(name, kwargs):
    rtol = 1e-3 if kwargs.get("threshold") == 5.0 else 1e-9  # ours is never less accurate
    rtol = 1e-7 if name == "Hardsigmoid" else rtol  # torch's multiplies by a sixth in float32
    assert_torchs(name, kwargs, [SMALL], rtol=rtol)
    assert repr(getattr(nn, name)(**kwargs)) == repr(getattr(torch.nn, name)(**kwargs))


def test_an_elu_does_not_overflow_where_it_is_not_exponential():
    x = mg.input("x", (2,))
    y = ops.elu(x)
    got = Graph((x,), (y, *mg.grad(y.sum(), [x])))(np.array([1e4, -1e4], "float32"))
    np.testing.assert_array_equal(got, [[1e4, -1], [1, 0]])


IMAGES = floats(2, 4, 5, 6)
SIGNAL = floats(2, 4, 7)
TOKENS = integers(3, 4, below=7)
LAYERS = [
    ("Embedding", {"num_embeddings": 7, "embedding_dim": 3}, TOKENS),
    ("Embedding", {"num_embeddings": 7, "embedding_dim": 3, "padding_idx": 2}, TOKENS),
    ("Embedding", {"num_embeddings": 7, "embedding_dim": 3, "padding_idx": -3}, TOKENS),
    ("BatchNorm1d", {"num_features": 5}, floats(4, 5)),
    ("BatchNorm1d", {"num_features": 5, "momentum": None}, floats(2, 5, 3)),
    ("BatchNorm1d", {"num_features": 5, "affine": False}, floats(2, 5, 3)),
    ("GroupNorm", {"num_groups": 2, "num_channels": 4}, IMAGES),
    ("GroupNorm", {"num_groups": 4, "num_channels": 4, "eps": 0.1}, floats(3, 4, 5)),
    ("GroupNorm", {"num_groups": 1, "num_channels": 4, "affine": False}, IMAGES),
    ("GroupNorm", {"num_groups": 2, "num_channels": 4, "bias": False}, IMAGES),
    ("RMSNorm", {"normalized_shape": (5, 6)}, IMAGES),
    ("RMSNorm", {"normalized_shape": (6,), "eps": 0.1}, IMAGES),
    ("RMSNorm", {"normalized_shape": (6,), "elementwise_affine": False}, IMAGES),
    ("Dropout2d", {"p": 0.0}, IMAGES),
    ("Conv1d", {"in_channels": 4, "out_channels": 6, "kernel_size": 3}, floats(2, 4, 7)),
    (
        "Conv1d",
        {
            "in_channels": 4,
            "out_channels": 6,
            "kernel_size": 2,
            "stride": 2,
            "padding": 1,
            "dilation": 3,
            "groups": 2,
            "bias": False,
        },
        floats(2, 4, 7),
    ),
    *[
        ("Conv2d", {"in_channels": 4, "out_channels": 6, "kernel_size": (3, 2), **kwargs}, IMAGES)
        for kwargs in [
            {"padding": "same"},
            {"padding": "valid", "stride": 2},
            {"padding": "same", "padding_mode": "reflect", "dilation": 2},
            {"padding": (2, 1), "padding_mode": "circular", "stride": (1, 2)},
            {"padding": 3, "padding_mode": "replicate", "groups": 2, "bias": False},
        ]
    ],
    *[
        ("Conv1d", {"in_channels": 4, "out_channels": 6, "kernel_size": 4, **kwargs}, SIGNAL)
        for kwargs in [
            {"padding": "same", "dilation": 2},
            {"padding": "valid", "padding_mode": "reflect"},
            {"padding": 2, "padding_mode": "circular", "bias": False},
        ]
    ],
    *[
        (name, kwargs, floats(2, 3, 11))
        for name, kwargs in [
            ("MaxPool1d", {"kernel_size": 3}),
            ("MaxPool1d", {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True}),
            ("AvgPool1d", {"kernel_size": 3}),
            ("AvgPool1d", {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True}),
            ("AvgPool1d", {"kernel_size": 3, "padding": 1, "count_include_pad": False}),
            ("AdaptiveAvgPool1d", {"output_size": 4}),
            ("AdaptiveMaxPool1d", {"output_size": 4}),
            ("AdaptiveMaxPool1d", {"output_size": 11}),
        ]
    ],
    *[
        ("AdaptiveMaxPool2d", {"output_size": size}, floats(2, 3, 9, 10))
        for size in [1, 3, (3, 5), (4, 7), (9, 3), (None, 4), (12, 10)]
    ],
    *[
        (name, kwargs, floats(4, 4, 9, 10))
        for name, kwargs in [
            ("MaxPool2d", {"kernel_size": 3, "ceil_mode": True}),
            ("MaxPool2d", {"kernel_size": (2, 3), "stride": (1, 2), "padding": (1, 0)}),
            ("AvgPool2d", {"kernel_size": 3, "stride": 2, "padding": 1}),
            ("AvgPool2d", {"kernel_size": 2, "ceil_mode": True, "count_include_pad": False}),
            ("AdaptiveAvgPool2d", {"output_size": 1}),
            ("AdaptiveAvgPool2d", {"output_size": (None, 4)}),
            ("LocalResponseNorm", {"size": 5, "alpha": 1e-2, "beta": 0.5, "k": 2.0}),
            ("LayerNorm", {"normalized_shape": (9, 10), "eps": 1e-3, "elementwise_affine": False}),
            ("LayerNorm", {"normalized_shape": (10,), "bias": False}),
            ("Flatten", {"start_dim": 2}),
            ("Flatten", {"start_dim": 0, "end_dim": 1}),
            ("BatchNorm2d", {"num_features": 4, "affine": False}),
            ("BatchNorm2d", {"num_features": 4, "bias": False}),
            ("BatchNorm2d", {"num_features": 4, "track_running_stats": False}),
            ("Dropout", {"p": 0.0}),
            ("Identity", {"two": 3}),
        ]
    ],
    ("Unflatten", {"dim": 1, "unflattened_size": (2, 2)}, IMAGES),
    ("Unflatten", {"dim": -1, "unflattened_size": (3, -1, 1)}, IMAGES),
    ("PixelShuffle", {"upscale_factor": 2}, floats(2, 8, 3, 2)),
    ("InstanceNorm2d", {"num_features": 4}, IMAGES),
    ("InstanceNorm2d", {"num_features": 4, "affine": True, "eps": 0.1}, IMAGES),
    *[
        (
            "ConvTranspose2d",
            {"in_channels": 4, "out_channels": 6, "kernel_size": 3, **kwargs},
            IMAGES,
        )
        for kwargs in [
            {},
            {"stride": 2, "padding": 1, "output_padding": 1},
            {"stride": (2, 3), "padding": (0, 1), "output_padding": (1, 2), "bias": False},
            {"groups": 2, "dilation": 2},
        ]
    ],
]


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch copies the input
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "kwargs", "x"), LAYERS)
def test_layers_are_torchs(name, kwargs, x, training):
    assert_torchs(name, kwargs, [x], training)
    if name != "InstanceNorm2d":  # torch shows what it does not take
        assert repr(getattr(nn, name)(**kwargs)) == repr(getattr(torch.nn, name)(**kwargs))


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
    for wanted in (y, mg.grad(y.sum(), [table.weight])[0]):
        function = mg.comp_graph(options={"graph_opt_level": level}).compile([x], wanted)
        function([[0, 4], [4, 1]])
        with pytest.raises(mg.GraphError, match=r"token -1 at \(1, 0\) is not in 0 \.\.\. 4"):
            function([[0, 4], [-1, 1]])


def test_a_token_of_a_small_type_is_compared_with_a_padding_that_it_cannot_be():
    x = mg.input("x", (2,), "uint8")
    y = nn.Embedding(300, 2, padding_idx=-1)(x)
    assert mg.comp_graph("reference").compile([x], y)(np.array([0, 255], "uint8")).all()
