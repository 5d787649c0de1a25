"""Calls of everything that users call, and values that they might give in place of an argument.

A call is written with its arguments by name; `variants` replaces each of them by each odd value.
"""

import decimal
import fractions
import inspect

import numpy as np

import minigraph as mg
from minigraph import data, nn, ops, optim

X = mg.input("x", (2, 3))
V = mg.input("v", (3,))
IMAGES = mg.input("images", (2, 4, 5, 6))
INTEGERS = mg.input("integers", (2, 3), "int64")
LABELS = mg.input("labels", (2,), "int64")
FLAGS = mg.input("flags", (2, 3), "bool")
WORLD = mg.distributed.world()
WEIGHTS = mg.input("weights", (8, 2, 3, 3))
CHANNELS = mg.input("channels", (4,))
LOSS = (X * X).sum()


class Opaque:
    """An object that nothing is known of."""

    def __repr__(self):
        return "<opaque>"


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def circular():
    value = []
    value.append(value)
    return value


ODD = {
    "none": None,
    "ellipsis": ...,
    "true": True,
    "zero": 0,
    "minus one": -1,
    "one": 1,
    "seven": 7,
    "2**31": 2**31,
    "2**62": 2**62,
    "2**63": 2**63,
    "2**70": 2**70,
    "-2**70": -(2**70),
    "10**400": 10**400,
    "half": 0.5,
    "1e300": 1e300,
    "nan": float("nan"),
    "infinity": float("inf"),
    "complex": 1 + 2j,
    "decimal": decimal.Decimal("0.5"),
    "fraction": fractions.Fraction(1, 2),
    "empty text": "",
    "text": "3",
    "surrogate": "\ud800",
    "bytes": b"3",
    "empty tuple": (),
    "pair": (1, 2),
    "pair of floats": (0.5, 2.0),
    "pair of none": (None, None),
    "pair of texts": ("a", "b"),
    "negative pair": (-1, -2),
    "large pair": (2**40, 2**40),
    "33 axes": (1,) * 33,
    "65 axes": (1,) * 65,
    "ragged": [[1], [2, 3]],
    "nested": nested(100),
    "circular": circular(),
    "set": {1, 2},
    "mapping": {"a": 1},
    "generator": (i for i in ()),
    "range": range(2),
    "slice": slice(None),
    "type": int,
    "function": len,
    "opaque": Opaque(),
    "numpy int": np.int64(1),
    "numpy float": np.float32(0.5),
    "numpy bool": np.True_,
    "scalar array": np.array(1),
    "vector": np.array([1, 2]),
    "empty array": np.zeros((0, 3)),
    "33-d array": np.zeros((1,) * 33),
    "64-d array": np.zeros((1,) * 64),
    "texts": np.array(["a", "b"]),
    "objects": np.array([None, 1]),
    "complex array": np.array([1j]),
    "dates": np.array(["2026-11-22"], "datetime64[D]"),
    "records": np.zeros(2, [("a", "i4")]),
    "long text": "y" * 5000,
    "long list": list(range(5000)),
    "10**5000": 10**5000,
    "long name": mg.input("y" * 5000, (2, 7)),
    "long size": mg.input("y", ("n" * 5000, 3)),
    "expression": X,
    "scalar expression": LOSS,
    "integer expression": INTEGERS,
    "parameter": mg.Parameter(np.ones(3, "float32")),
    "module": nn.ReLU(),
    "op": ops.relu,
}


# What the functions take that elementwise ops and reductions do not have in common.
FUNCTIONS = {
    "all_gather": {"x": X, "world": WORLD, "axis": 0},
    "all_reduce": {"x": X, "world": WORLD, "op": "sum"},
    "broadcast": {"x": X, "world": WORLD, "root": 0},
    "check": {"x": FLAGS, "message": "what holds", "value": X},
    "print": {"x": X, "label": "x"},
    "adaptive_max_pool2d": {"x": IMAGES, "output_size": (2, 3)},
    "binary_cross_entropy": {
        "x": X,
        "target": X,
        "weight": np.ones(3, "float32"),
        "reduction": "mean",
    },
    "adaptive_avg_pool2d": {"x": IMAGES, "output_size": (2, 3)},
    "all": {"x": X, "axis": 1, "keepdims": True},
    "any": {"x": X, "axis": 1, "keepdims": True},
    "argsort": {"x": X, "axis": 1, "descending": True, "stable": True},
    "arange": {"start": 0, "stop": 6, "step": 2, "dtype": "int32"},
    "argmax": {"x": X, "axis": 1, "keepdims": True},
    "argmin": {"x": X, "axis": 1, "keepdims": True},
    "astype": {"x": X, "dtype": "float64"},
    "avg_pool2d": {
        "x": IMAGES,
        "kernel_size": 2,
        "stride": 2,
        "padding": 1,
        "ceil_mode": True,
        "count_include_pad": False,
    },
    "batch_norm": {
        "x": IMAGES,
        "running_mean": CHANNELS,
        "running_var": CHANNELS,
        "weight": CHANNELS,
        "bias": CHANNELS,
        "training": False,
        "momentum": 0.1,
        "eps": 1e-5,
    },
    "batch_norm_with_statistics": {"x": IMAGES, "weight": CHANNELS, "bias": CHANNELS, "eps": 1e-5},
    "binary_cross_entropy_with_logits": {
        "x": X,
        "target": X,
        "weight": V,
        "reduction": "mean",
        "pos_weight": V,
    },
    "broadcast_to": {"x": V, "shape": (2, 3)},
    "clip": {"x": X, "min": 0, "max": 1},
    "concat": {"xs": [X, X], "axis": 1},
    "conv2d": {
        "x": IMAGES,
        "w": WEIGHTS,
        "bias": np.zeros(8, "float32"),
        "stride": 1,
        "padding": 1,
        "dilation": 1,
        "groups": 2,
    },
    "conv_transpose2d": {
        "x": IMAGES,
        "w": mg.input("w", (4, 3, 3, 3)),
        "bias": np.zeros(6, "float32"),
        "stride": 2,
        "padding": 1,
        "output_padding": 1,
        "groups": 2,
        "dilation": 1,
    },
    "count_nonzero": {"x": X, "axis": 1, "keepdims": True},
    "cross_entropy": {
        "logits": X,
        "labels": LABELS,
        "weight": V,
        "ignore_index": -100,
        "reduction": "mean",
        "label_smoothing": 0.1,
    },
    "cumprod": {"x": X, "axis": 1, "dtype": "float64"},
    "cumsum": {"x": X, "axis": 1, "dtype": "float64"},
    "cumulative_prod": {"x": X, "axis": 1, "dtype": "float64", "include_initial": True},
    "cumulative_sum": {"x": X, "axis": 1, "dtype": "float64", "include_initial": True},
    "diff": {"x": X, "axis": 1, "n": 2},
    "divide": {"x": X, "y": X},
    "dropout": {"x": X, "p": 0.5, "training": True},
    "einsum": {0: "ij,j->i", 1: X, 2: V},
    "elu": {"x": X, "alpha": 1.0},
    "expand_dims": {"x": X, "axis": 0},
    "eye": {"n_rows": 2, "n_cols": 3, "k": 1, "dtype": "float32"},
    "flatten": {"x": IMAGES, "start_axis": 1, "end_axis": 2},
    "flip": {"x": X, "axis": 0},
    "fma": {"a": X, "b": X, "c": X},
    "full": {"shape": (2, 3), "fill_value": 0.5, "dtype": "float32"},
    "full_like": {"x": X, "fill_value": 0.5, "dtype": "float32"},
    "gather": {"x": X, "axis": 1, "index": INTEGERS % 2},
    "gelu": {"x": X, "approximate": "tanh"},
    "getitem": {"x": X, "index": 0},
    "group_norm": {"x": IMAGES, "num_groups": 2, "weight": CHANNELS, "bias": CHANNELS, "eps": 1e-5},
    "huber_loss": {"x": X, "target": X, "reduction": "mean", "delta": 1.0},
    "index_add": {"x": X, "axis": 1, "index": LABELS, "source": X[:, :2], "alpha": 2},
    "index_put": {"x": X, "indices": (LABELS,), "values": V, "accumulate": True},
    "interpolate": {
        "x": IMAGES,
        "scale_factor": (2.0, 1.5),
        "mode": "bilinear",
        "align_corners": True,
        "recompute_scale_factor": False,
    },
    "kl_div": {"x": X, "target": X, "reduction": "mean", "log_target": False},
    "l1_loss": {"x": X, "target": X, "reduction": "mean"},
    "layer_norm": {"x": X, "normalized_shape": 3, "weight": V, "bias": V, "eps": 1e-5},
    "leaky_relu": {"x": X, "negative_slope": 0.1},
    "linear": {"x": X, "w": mg.input("w", (5, 3)), "bias": mg.input("b", (5,))},
    "linspace": {"start": 0, "stop": 1, "num": 5, "dtype": "float32", "endpoint": True},
    "local_response_norm": {"x": IMAGES, "size": 3, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
    "log_softmax": {"x": X, "axis": 1},
    "logsumexp": {"x": X, "axis": 1, "keepdims": True},
    "matmul": {"x": X, "y": mg.input("y", (3, 4))},
    "matrix_transpose": {"x": X},
    "max_pool2d": {"x": IMAGES, "kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True},
    "mean": {"x": X, "axis": 1, "keepdims": True},
    "moveaxis": {"x": X, "source": 0, "destination": 1},
    "mse_loss": {"x": X, "target": X, "reduction": "mean"},
    "nll_loss": {
        "x": X,
        "labels": LABELS,
        "weight": V,
        "ignore_index": -100,
        "reduction": "mean",
    },
    "norm": {"x": X, "ord": 1, "axis": 1, "keepdims": True},
    "normalize": {"x": X, "p": 1, "axis": 0, "eps": 1e-6},
    "cosine_similarity": {"x1": X, "x2": X, "axis": 0, "eps": 1e-6},
    "one_hot": {"labels": LABELS, "num_classes": 3, "dtype": "float32"},
    "ones": {"shape": (2, 3), "dtype": "float32"},
    "ones_like": {"x": X, "dtype": "float32"},
    "outer": {"x1": V, "x2": V},
    "pad": {"x": X, "widths": ((1, 2), (0, 1)), "constant_values": 2.0, "mode": "edge"},
    "permute_dims": {"x": X, "axes": (1, 0)},
    "positive": {"x": X},
    "prelu": {"x": X, "weight": V},
    "random_normal": {"shape": (2, 3), "mean": 1.0, "std": 2.0, "dtype": "float32"},
    "random_uniform": {"shape": (2, 3), "low": 1.0, "high": 2.0, "dtype": "float32"},
    "relu6": {"x": X},
    "hardsigmoid": {"x": X},
    "mish": {"x": X},
    "repeat": {"x": X, "repeats": 2, "axis": 1},
    "reshape": {"x": X, "shape": (3, 2)},
    "rms_norm": {"x": X, "normalized_shape": 3, "weight": V, "eps": 1e-5},
    "roll": {"x": X, "shift": 2, "axis": 1},
    "scaled_dot_product_attention": {
        "query": X,
        "key": X,
        "value": X,
        "attn_mask": np.ones((2, 2), bool),
        "dropout_p": 0.5,
        "is_causal": False,
        "scale": 0.5,
    },
    "scan": {"body": lambda c, x: (c, x), "carry": V, "xs": X, "length": 2, "reverse": True},
    "scatter": {"x": X, "axis": 1, "index": INTEGERS % 2, "src": X},
    "scatter_add": {"x": X, "axis": 1, "index": INTEGERS % 2, "src": X},
    "searchsorted": {"x1": V, "x2": X, "side": "right"},
    "silu": {"x": X},
    "slice": {"x": X, "start": 0, "stop": 2, "step": 1},
    "smooth_l1_loss": {"x": X, "target": X, "reduction": "mean", "beta": 1.0},
    "softmax": {"x": X, "axis": 1, "where": np.ones((2, 1), bool)},
    "sort": {"x": X, "axis": 1, "descending": True, "stable": True},
    "softplus": {"x": X, "beta": 1.0, "threshold": 20.0},
    "split": {"x": X, "sections_or_indices": 3, "axis": 1},
    "squeeze": {"x": mg.input("one", (1, 3)), "axis": 0},
    "stack": {"xs": [X, X], "axis": 1},
    "std": {"x": X, "axis": 1, "correction": 1, "keepdims": True},
    "stop_gradient": {"x": X},
    "swapaxes": {"x": X, "axis1": 0, "axis2": 1},
    "take": {"x": X, "indices": LABELS, "axis": 0},
    "take_along_axis": {"x": X, "indices": INTEGERS % 2, "axis": 1},
    "tensordot": {"x1": X, "x2": V, "axes": ((1,), (0,))},
    "tile": {"x": X, "repetitions": (2, 1)},
    "topk": {"x": X, "k": 2, "axis": 1, "largest": True, "sorted": True},
    "tril": {"x": X, "k": 1},
    "triu": {"x": X, "k": 1},
    "unstack": {"x": X, "axis": 1},
    "var": {"x": X, "axis": 1, "correction": 1, "keepdims": True},
    "vecdot": {"x1": X, "x2": V, "axis": -1},
    "where": {"condition": FLAGS, "x": X, "y": X},
    "zeros": {"shape": (2, 3), "dtype": "float32"},
    "zeros_like": {"x": X, "dtype": "float32"},
}

LAYERS = {
    nn.AdaptiveMaxPool2d: ({"output_size": 3, "return_indices": False}, IMAGES),
    nn.MaxPool1d: (
        {"kernel_size": 2, "stride": 1, "padding": 1, "ceil_mode": True},
        mg.input("signal", (2, 3, 8)),
    ),
    nn.AvgPool1d: (
        {"kernel_size": 2, "stride": 1, "padding": 1, "count_include_pad": True},
        mg.input("signal", (2, 3, 8)),
    ),
    nn.AdaptiveAvgPool1d: ({"output_size": 3}, mg.input("signal", (2, 3, 8))),
    nn.Unflatten: ({"dim": 1, "unflattened_size": (2, -1)}, IMAGES),
    nn.AdaptiveAvgPool2d: ({"output_size": 2}, IMAGES),
    nn.AvgPool2d: (
        {
            "kernel_size": 2,
            "stride": 2,
            "padding": 1,
            "ceil_mode": True,
            "count_include_pad": False,
        },
        IMAGES,
    ),
    nn.BatchNorm2d: (
        {
            "num_features": 4,
            "eps": 1e-5,
            "momentum": 0.1,
            "affine": True,
            "track_running_stats": True,
            "bias": True,
            "dtype": "float32",
        },
        IMAGES,
    ),
    nn.Conv1d: (
        {
            "in_channels": 3,
            "out_channels": 2,
            "kernel_size": 2,
            "stride": 1,
            "padding": 1,
            "dilation": 1,
            "padding_mode": "reflect",
        },
        mg.input("signal", (2, 3, 8)),
    ),
    nn.ReflectionPad2d: ({"padding": (1, 1, 0, 1)}, IMAGES),
    nn.ReplicationPad1d: ({"padding": 1}, mg.input("signal", (2, 3, 8))),
    nn.ConstantPad2d: ({"padding": 1, "value": 2.0}, IMAGES),
    nn.Conv2d: (
        {
            "in_channels": 4,
            "out_channels": 8,
            "kernel_size": 3,
            "stride": 1,
            "padding": 1,
            "dilation": 1,
            "groups": 2,
            "bias": True,
            "padding_mode": "zeros",
            "dtype": "float32",
        },
        IMAGES,
    ),
    nn.Embedding: (
        {"num_embeddings": 4, "embedding_dim": 3, "padding_idx": 2, "dtype": "float32"},
        LABELS,
    ),
    nn.RNN: (
        {
            "input_size": 3,
            "hidden_size": 4,
            "num_layers": 2,
            "nonlinearity": "relu",
            "bias": True,
            "batch_first": True,
            "dropout": 0.5,
            "bidirectional": True,
            "dtype": "float32",
        },
        X,
    ),
    nn.LSTM: ({"input_size": 3, "hidden_size": 4, "num_layers": 2, "dropout": 0.5}, X),
    nn.GRU: ({"input_size": 3, "hidden_size": 4, "bias": False, "batch_first": True}, X),
    nn.RNNCell: ({"input_size": 3, "hidden_size": 4, "bias": True, "nonlinearity": "relu"}, X),
    nn.LSTMCell: ({"input_size": 3, "hidden_size": 4, "bias": True, "dtype": "float32"}, X),
    nn.GRUCell: ({"input_size": 3, "hidden_size": 4, "bias": True}, X),
    nn.GroupNorm: (
        {"num_groups": 2, "num_channels": 4, "eps": 1e-5, "affine": True, "dtype": "float32"},
        IMAGES,
    ),
    nn.TransformerEncoderLayer: (
        {"d_model": 8, "nhead": 2, "dim_feedforward": 4, "dropout": 0.1, "activation": "gelu"},
        mg.input("sequence", (2, 3, 8)),
    ),
    nn.TransformerEncoder: (
        {"encoder_layer": nn.TransformerEncoderLayer(8, 2, 4), "num_layers": 2},
        mg.input("sequence", (2, 3, 8)),
    ),
    nn.InstanceNorm2d: ({"num_features": 4, "eps": 1e-5, "affine": True}, IMAGES),
    nn.PixelShuffle: ({"upscale_factor": 2}, IMAGES),
    nn.UpsamplingNearest2d: ({"scale_factor": 2}, IMAGES),
    nn.Upsample: (
        {"size": (5, 6), "mode": "bilinear", "align_corners": True, "recompute_scale_factor": True},
        IMAGES,
    ),
    nn.RMSNorm: (
        {"normalized_shape": 3, "eps": None, "elementwise_affine": True, "dtype": "float32"},
        X,
    ),
    nn.Dropout: ({"p": 0.5, "inplace": False}, X),
    nn.ELU: ({"alpha": 1.0, "inplace": False}, X),
    nn.Flatten: ({"start_dim": 1, "end_dim": -1}, IMAGES),
    nn.Hardsigmoid: ({"inplace": False}, X),
    nn.Mish: ({"inplace": False}, X),
    nn.Hardswish: ({"inplace": False}, X),
    nn.Identity: ({}, X),
    nn.LayerNorm: (
        {
            "normalized_shape": 3,
            "eps": 1e-5,
            "elementwise_affine": True,
            "bias": True,
            "dtype": "float32",
        },
        X,
    ),
    nn.Linear: ({"in_features": 3, "out_features": 5, "bias": True, "dtype": "float32"}, X),
    nn.LocalResponseNorm: ({"size": 3, "alpha": 1e-4, "beta": 0.75, "k": 1.0}, IMAGES),
    nn.MaxPool2d: (
        {
            "kernel_size": 2,
            "stride": 2,
            "padding": 1,
            "dilation": 1,
            "return_indices": False,
            "ceil_mode": True,
        },
        IMAGES,
    ),
    nn.PReLU: ({"num_parameters": 3, "init": 0.25, "dtype": "float32"}, X),
    nn.Softmax: ({"dim": 1}, X),
    nn.ReLU: ({"inplace": False}, X),
}


def weights():
    return [mg.Parameter(np.ones((2, 3), "float32"), "w")]


def method(name, make=lambda: X):
    """The method of what `make` returns, as a function of its arguments by name."""

    def call(*args, **kwargs):
        return getattr(make(), name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"{type(make()).__name__}.{name}"
    return call


def built(layer, value):
    """A function that makes a layer and calls it."""

    def call(x=value, **kwargs):
        return layer(**kwargs)(x)

    call.__name__ = call.__qualname__ = f"nn.{layer.__name__}"
    return call


def function():
    return mg.comp_graph("reference").compile([X], X * 2)


def others():
    """Yield what is no op and no layer: (function, arguments by name)."""
    yield mg.input, {"name": "x", "shape": (2, 3), "dtype": "float32"}
    yield mg.Parameter, {"value": np.ones(3), "name": "p", "dtype": "float32", "trainable": True}
    yield nn.Buffer, {"value": 1.0, "name": "b", "dtype": "float32"}
    yield mg.grad, {"loss": LOSS, "wrt": [X]}
    parameter = weights()[0]
    yield method("assign", lambda: parameter), {"value": np.ones((2, 3), "float32")}
    yield method("rename", lambda: parameter), {"name": "p"}
    yield method("reshape"), {0: (3, 2)}
    yield method("transpose"), {0: (1, 0)}
    yield method("transpose"), {0: 1, 1: 0}
    yield method("astype"), {"dtype": "float64"}
    yield method("__getitem__"), {0: 0}
    yield method("__getitem__"), {0: (0, slice(0, 2))}
    yield lambda at: X[:, at:], {"at": 1}
    yield lambda step: X[::step], {"step": 1}
    yield method("__add__"), {0: 1}
    yield method("__rpow__"), {0: 2}
    for name in ("sum", "mean", "max", "min", "prod"):
        yield method(name), {"axis": 1, "keepdims": True}

    yield nn.manual_seed, {"seed": 0}
    yield nn.init.uniform_, {"parameter": parameter, "a": 0.0, "b": 1.0}
    yield nn.init.normal_, {"parameter": parameter, "mean": 0.0, "std": 1.0}
    for fill in (nn.init.kaiming_normal_, nn.init.kaiming_uniform_):
        yield fill, {"parameter": parameter, "a": 0.0, "mode": "fan_in", "nonlinearity": "relu"}
    for fill in (nn.init.xavier_normal_, nn.init.xavier_uniform_, nn.init.orthogonal_):
        yield fill, {"parameter": parameter, "gain": 1.0}
    for fill in (nn.init.zeros_, nn.init.ones_, nn.init.eye_):
        yield fill, {"parameter": parameter}
    yield nn.init.constant_, {"parameter": parameter, "val": 0.5}
    normal = {"parameter": parameter, "mean": 0.0, "std": 1.0, "a": -2.0, "b": 2.0}
    yield nn.init.trunc_normal_, normal
    yield nn.init.calculate_gain, {"nonlinearity": "leaky_relu", "param": 0.1}
    yield nn.Sequential, {0: nn.ReLU(), 1: nn.ReLU()}
    yield nn.ModuleList, {"modules": [nn.ReLU()]}
    yield nn.ModuleDict, {"modules": {"a": nn.ReLU()}}
    linear = nn.Linear(3, 2)
    yield method("train", lambda: linear), {"mode": True}
    yield method("load_state_dict", lambda: linear), {"state": linear.state_dict(), "strict": True}

    sgd = {
        "parameters": weights(),
        "lr": 0.1,
        "momentum": 0.9,
        "dampening": 0.0,
        "weight_decay": 0.1,
        "nesterov": True,
    }
    yield optim.SGD, sgd
    adam = {
        "parameters": weights(),
        "lr": 0.1,
        "betas": (0.9, 0.99),
        "eps": 1e-8,
        "weight_decay": 0.1,
        "amsgrad": True,
    }
    yield optim.Adam, adam
    yield optim.AdamW, adam
    optimizer = optim.Adam(weights())
    loss = optimizer.parameters[0].sum()
    yield method("minimize", lambda: optimizer), {"loss": loss}
    yield method("load_state_dict", lambda: optimizer), {"state": optimizer.state_dict()}

    def set_lr(lr):
        optimizer.lr = lr

    yield set_lr, {"lr": 0.1}

    yield mg.comp_graph, {"device": "cpu", "options": {"seed": 1}}
    cg = mg.comp_graph("reference")
    yield method("set_option", lambda: cg), {"name": "seed", "value": 1}
    yield method("get_option", lambda: cg), {"name": "seed"}
    yield method("load_cache", lambda: cg), {"path": "absent", "type": "all"}
    yield (
        method("compile", lambda: cg),
        {"inputs": [X], "outputs": [X * 2], "updates": {}, "optimize": False, "cache_dir": None},
    )
    called = function()
    yield called, {0: np.ones((2, 3), "float32")}
    yield method("profile", lambda: called), {0: np.ones((2, 3), "float32")}

    yield data.Synthetic, {"shape": (3, 4, 4), "classes": 2, "length": 4, "seed": 0}
    yield data.Digits, {"train": True, "size": 8, "channels": 1}
    yield data.CIFAR10, {"directory": "absent", "train": True, "augment": False}
    yield (
        data.ImageFolder,
        {
            "directory": "absent",
            "size": 8,
            "augment": False,
            "mean": (0.5, 0.5, 0.5),
            "std": (1.0, 1.0, 1.0),
        },
    )
    yield (
        data.DataLoader,
        {
            "dataset": data.Synthetic((3, 4, 4), 2, 4),
            "batch_size": 2,
            "shuffle": True,
            "drop_last": True,
            "workers": 0,
            "prefetch": 1,
            "seed": 0,
            "transform": None,
            "batch_transform": None,
            "collate": None,
        },
    )
    yield data.read_image, {"path": "absent", "size": 8, "mean": (0, 0, 0), "std": (1, 1, 1)}
    yield data.default_collate, {"examples": [1, 2]}
    yield mg.load, {"path": "absent"}
    yield mg.save, {"path": "absent/folder", "state": {"a": np.ones(1)}}


def public_ops():
    return {
        name: value
        for name, value in vars(ops).items()
        if callable(value) and not name.startswith("_") and not inspect.isclass(value)
    }


def arguments(name, function):
    """The arguments of an op's function: from the table, or by what its class has in common."""
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    if "keepdims" in parameters:
        return {"x": X, "axis": 1, "keepdims": True}
    value = INTEGERS if "bitwise" in name else FLAGS if "logical" in name else X
    return dict.fromkeys(parameters, value)


def calls():
    """Yield everything that users call: (its name, the function, its arguments by name)."""
    for name, fn in public_ops().items():
        yield f"ops.{name}", fn, arguments(name, fn)
    for layer, (kwargs, value) in LAYERS.items():
        yield f"nn.{layer.__name__}", built(layer, value), {**kwargs, "x": value}
    for fn, kwargs in others():
        yield getattr(fn, "__qualname__", type(fn).__name__), fn, kwargs


def invoke(function, kwargs):
    """Call a function with arguments by name; those without one, or with a number, by position."""
    try:
        positional = {
            name
            for name, p in inspect.signature(function).parameters.items()
            if p.kind is inspect.Parameter.POSITIONAL_ONLY
        }
    except (TypeError, ValueError):
        positional = set()
    args = [v for k, v in kwargs.items() if isinstance(k, int) or k in positional]
    named = {k: v for k, v in kwargs.items() if not (isinstance(k, int) or k in positional)}
    return function(*args, **named)


def variants():
    """Yield each call with one argument replaced: (name, argument, value's name, thunk)."""
    for name, fn, kwargs in calls():
        for argument in kwargs:
            if (name, argument) == ("ops.scan", "body"):
                continue  # what it raises is the user's own: see `tests/ops/test_scan.py`
            for odd, value in ODD.items():
                changed = {**kwargs, argument: value}
                yield name, argument, odd, lambda fn=fn, changed=changed: invoke(fn, changed)
