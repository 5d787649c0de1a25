"""Layers and losses against torch's of the same name and arguments: results, gradients, states."""

import inspect

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.graph import Graph

torch = pytest.importorskip("torch")


def floats(*shape, seed=0, low=-2, high=2):
    return np.random.default_rng(seed).uniform(low, high, shape)


def integers(*shape, below):
    return np.random.default_rng(0).integers(0, below, shape)


def share(*shape):
    """Probabilities along axis 1."""
    values = floats(*shape, seed=3, low=0.1, high=1)
    return values / values.sum(1, keepdims=True)


def weights(shape):
    return floats(*shape, seed=9, low=0.5, high=1.5)


def ours(module, xs):
    """The result and the gradients for the float inputs and the parameters."""
    inputs = [mg.input(f"x{i}", x.shape, x.dtype) for i, x in enumerate(xs)]
    y = module(*inputs)
    wrt = [x for x in inputs if x.dtype.kind == "f"]
    wrt += [p for p in module.parameters() if p.trainable]
    grads = mg.grad(ops.sum(y * weights(y.shape)), wrt)
    return Graph(tuple(inputs), (y, *grads))(*xs)


def theirs(module, xs):
    inputs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in xs]
    y = module(*inputs)
    wrt = [x for x in (*inputs, *module.parameters()) if x.requires_grad]
    loss = (y * torch.from_numpy(weights(tuple(y.shape)))).sum()
    grads = torch.autograd.grad(loss, wrt, materialize_grads=True)
    return y.detach().numpy(), *(g.numpy() for g in grads)


def assert_torchs(name, kwargs, xs, training=True, rtol=1e-9):
    tensors = {k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    theirs_module = getattr(torch.nn, name)(**tensors).double().train(training)
    dtype = (
        {"dtype": "float64"} if "dtype" in inspect.signature(getattr(nn, name)).parameters else {}
    )
    module = getattr(nn, name)(**kwargs, **dtype).train(training)
    with torch.no_grad():
        for i, p in enumerate(theirs_module.parameters()):
            p.copy_(torch.from_numpy(floats(*p.shape, seed=20 + i, low=0.5, high=1.5)))
    state = theirs_module.state_dict()
    assert list(module.state_dict()) == list(state)
    for key, value in module.state_dict().items():
        assert value.shape == tuple(state[key].shape), key
    module.load_state_dict(state)
    theirs_module.load_state_dict(
        {k: torch.from_numpy(np.array(v)) for k, v in module.state_dict().items()}
    )
    for got, want in zip(ours(module, xs), theirs(theirs_module, xs), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-11)


X, Y = floats(4, 5), floats(4, 5, seed=1)
MAPS = floats(2, 5, 3)
PIXELS = integers(2, 3, below=5)
LABELS = integers(4, below=5)
HOLES = np.array([1, -100, 4, -100])
CLASSES = floats(5, seed=2, low=0.5, high=2)
LOG = np.log(share(4, 5))


LOSSES = [
    ("CrossEntropyLoss", {}, (X, LABELS)),
    ("CrossEntropyLoss", {"weight": CLASSES}, (X, LABELS)),
    ("CrossEntropyLoss", {"ignore_index": -100}, (X, HOLES)),
    ("CrossEntropyLoss", {"ignore_index": 2}, (MAPS, PIXELS)),
    ("CrossEntropyLoss", {"label_smoothing": 0.2}, (X, LABELS)),
    (
        "CrossEntropyLoss",
        {"label_smoothing": 0.2, "reduction": "none"},
        (MAPS, PIXELS),
    ),
    (
        "CrossEntropyLoss",
        {"weight": CLASSES, "ignore_index": -100, "label_smoothing": 0.1},
        (X, HOLES),
    ),
    (
        "CrossEntropyLoss",
        {"weight": CLASSES, "ignore_index": -100, "label_smoothing": 0.1, "reduction": "none"},
        (X, HOLES),
    ),
    ("CrossEntropyLoss", {"weight": CLASSES, "reduction": "sum"}, (X, LABELS)),
    ("CrossEntropyLoss", {"reduction": "none"}, (MAPS, PIXELS)),
    ("CrossEntropyLoss", {"reduction": "sum"}, (X, LABELS)),
    ("CrossEntropyLoss", {}, (X, share(4, 5))),
    ("CrossEntropyLoss", {"weight": CLASSES, "label_smoothing": 0.1}, (MAPS, share(2, 5, 3))),
    ("CrossEntropyLoss", {"reduction": "none"}, (MAPS, share(2, 5, 3))),
    ("CrossEntropyLoss", {"reduction": "sum"}, (MAPS, share(2, 5, 3))),
    ("NLLLoss", {}, (X, LABELS)),
    ("NLLLoss", {"weight": CLASSES, "ignore_index": 1}, (X, LABELS)),
    ("NLLLoss", {"weight": CLASSES, "reduction": "none"}, (MAPS, PIXELS)),
    ("NLLLoss", {"ignore_index": -100, "reduction": "sum"}, (X, HOLES)),
    *[
        (name, {"reduction": reduction, **kwargs}, (X, Y))
        for name, kwargs in [
            ("MSELoss", {}),
            ("L1Loss", {}),
            ("SmoothL1Loss", {}),
            ("SmoothL1Loss", {"beta": 0.3}),
            ("SmoothL1Loss", {"beta": 0}),
            ("HuberLoss", {}),
            ("HuberLoss", {"delta": 0.7}),
        ]
        for reduction in ("mean", "sum", "none")
    ],
    ("KLDivLoss", {}, (LOG, share(4, 5))),
    ("KLDivLoss", {"reduction": "batchmean"}, (LOG, share(4, 5))),
    ("KLDivLoss", {"reduction": "sum", "log_target": True}, (LOG, np.log(share(4, 5)))),
    ("KLDivLoss", {"reduction": "none"}, (LOG, share(4, 5))),
    ("BCELoss", {}, (share(4, 5), share(4, 5))),
    ("BCELoss", {"reduction": "none", "weight": CLASSES}, (share(4, 5), (Y > 0) * 1.0)),
    ("BCELoss", {"reduction": "sum"}, (share(4, 5), share(4, 5))),
    ("BCEWithLogitsLoss", {}, (X, share(4, 5))),
    ("BCEWithLogitsLoss", {}, (X * 100, share(4, 5))),
    ("BCEWithLogitsLoss", {"reduction": "none", "weight": CLASSES}, (X, share(4, 5))),
    ("BCEWithLogitsLoss", {"reduction": "sum", "pos_weight": CLASSES}, (X, share(4, 5))),
]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")  # KLDivLoss in torch
@pytest.mark.parametrize(("name", "kwargs", "xs"), LOSSES)
def test_losses_are_torchs(name, kwargs, xs):
    assert_torchs(name, kwargs, xs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_plain_cross_entropy_is_one_op_at_level_2_whatever_its_reduction(reduction):
    x, labels = mg.input("x", (4, 5)), mg.input("labels", (4,), "int64")
    loss = ops.cross_entropy(x, labels, reduction=reduction).sum()
    cg = mg.comp_graph(options={"graph_opt_level": 2})
    step = cg.compile([x, labels], [loss, *mg.grad(loss, [x])])
    assert "cross_entropy_backward" in step.report().section("steps")


def test_a_class_of_probability_0_adds_nothing_to_a_divergence():
    target = np.where(X > 1, 0, share(4, 5))
    got = ops.kl_div(LOG, target, reduction="batchmean")
    want = torch.nn.functional.kl_div(
        torch.tensor(LOG), torch.tensor(target), reduction="batchmean"
    )
    np.testing.assert_allclose(Graph((), (got,))()[0], want.item(), rtol=1e-12)


def test_a_probability_of_0_or_1_has_a_finite_loss_as_in_torch():
    x, target = np.array([0, 0, 1, 1, 1e-30]), np.array([0.0, 1, 0, 1, 1])
    node = mg.input("x", x.shape, "float64")
    losses = ops.binary_cross_entropy(node, target, reduction="none")
    got, gradient = Graph((node,), (losses, *mg.grad(losses.sum(), [node])))(x)
    want = torch.nn.functional.binary_cross_entropy(
        torch.tensor(x), torch.tensor(target), reduction="none"
    )
    np.testing.assert_allclose(got, want)
    assert np.isfinite(gradient).all()
    assert np.isnan(Graph((node,), (losses,))(x * np.nan)[0]).all()


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
    ("BatchNorm1d", {"num_features": 5}, X),
    ("BatchNorm1d", {"num_features": 5, "momentum": None}, MAPS),
    ("BatchNorm1d", {"num_features": 5, "affine": False}, MAPS),
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
        (
            "Conv2d",
            {"in_channels": 4, "out_channels": 6, "kernel_size": (3, 2), **kwargs},
            IMAGES,
        )
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
    ("Unflatten", {"dim": 1, "unflattened_size": (2, 2)}, IMAGES),
    ("Unflatten", {"dim": -1, "unflattened_size": (3, -1, 1)}, IMAGES),
    ("PixelShuffle", {"upscale_factor": 2}, floats(2, 8, 3, 2)),
    ("UpsamplingNearest2d", {"scale_factor": 2}, IMAGES),
    ("UpsamplingNearest2d", {"scale_factor": (3, 2)}, IMAGES),
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
    if name not in ("UpsamplingNearest2d", "InstanceNorm2d"):  # torch shows what they do not take
        assert repr(getattr(nn, name)(**kwargs)) == repr(getattr(torch.nn, name)(**kwargs))


def test_a_token_of_padding_starts_as_zeros():
    weight = nn.Embedding(5, 3, padding_idx=-2).weight.numpy()
    assert (weight[3] == 0).all()
    assert (weight[[0, 1, 2, 4]] != 0).all()


def test_a_dropout_of_channels_drops_whole_channels():
    x = mg.input("x", (50, 4, 3, 2))
    y = mg.comp_graph("reference").compile([x], nn.Dropout2d(0.25)(x))(np.ones(x.shape, "float32"))
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    assert (y == y[:, :, :1, :1]).all()


# ---------------------------------------------------------------- attention

QUERY, KEY, VALUE = floats(2, 3, 5, 4), floats(2, 3, 7, 4, seed=1), floats(2, 3, 7, 6, seed=2)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": np.tri(5, 7, 1, dtype=bool)},
        {"attn_mask": floats(2, 1, 5, 7, seed=4)},
    ],
)
def test_attention_is_torchs(kwargs):
    class Ours(nn.Module):
        def forward(self, q, k, v):
            return ops.scaled_dot_product_attention(q, k, v, **kwargs)

    class Theirs(torch.nn.Module):
        def forward(self, q, k, v):
            tensors = {
                k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
                for k, v in kwargs.items()
            }
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **tensors)

    xs = QUERY, KEY, VALUE
    for got, want in zip(ours(Ours(), xs), theirs(Theirs(), xs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


SEQUENCE = floats(2, 5, 8)
HIDDEN = np.array([[False] * 5, [False, False, True, True, False]])


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": HIDDEN},
        {"attn_mask": ~np.tri(5, dtype=bool)},
        {"attn_mask": floats(4, 5, 5, seed=5), "average_attn_weights": False},
    ],
)
@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_with_heads_is_torchs(batch_first, masks):
    x = SEQUENCE if batch_first else SEQUENCE.transpose(1, 0, 2).copy()
    theirs_module = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first, dtype="float64")
    assert list(module.state_dict()) == list(theirs_module.state_dict())
    module.load_state_dict(theirs_module.state_dict())
    tensors = {k: torch.from_numpy(v) if hasattr(v, "shape") else v for k, v in masks.items()}
    node = mg.input("x", x.shape, "float64")
    t = torch.tensor(x, requires_grad=True)
    want = theirs_module(t, t, t, **tensors)
    got = module(node, node, node, **masks)
    (dx,) = mg.grad(ops.sum(got[0] * weights(got[0].shape)), [node])
    (want[0] * torch.from_numpy(weights(got[0].shape))).sum().backward()
    wanted = [y.detach().numpy() for y in (*want, t.grad)]
    for mine, other in zip(Graph((node,), (*got, dx))(x), wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": True}, {"bias": False}],
)
def test_an_encoder_layer_is_torchs(kwargs, training):
    sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 12, "dropout": 0.0}
    assert_torchs("TransformerEncoderLayer", {**sizes, **kwargs}, [SEQUENCE], training, rtol=1e-7)


def test_a_causal_encoder_layer_sees_no_later_places():
    module = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, dtype="float64")
    x = mg.input("x", SEQUENCE.shape, "float64")
    run = Graph((x,), (module(x, is_causal=True),))
    changed = SEQUENCE.copy()
    changed[:, 3:] += 1
    np.testing.assert_array_equal(run(SEQUENCE)[0][:, :3], run(changed)[0][:, :3])
