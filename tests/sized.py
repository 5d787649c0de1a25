"""Networks of images whose sizes the calls give."""

import numpy as np
from small_functions import real

import minigraph as mg
from minigraph import nn, ops

SIZES = (3, 1, 5)


# Of images, [n, 4, 6, 6].
OF_IMAGES = {
    "conv": lambda: nn.Conv2d(4, 8, 3, padding=1),
    "conv-groups": lambda: nn.Conv2d(4, 8, 3, stride=2, groups=2),
    "conv-transpose": lambda: nn.ConvTranspose2d(4, 2, 2, stride=2),
    "batch-norm": lambda: nn.BatchNorm2d(4),
    "group-norm": lambda: nn.GroupNorm(2, 4),
    "instance-norm": lambda: nn.InstanceNorm2d(4),
    "layer-norm": lambda: nn.LayerNorm((4, 6, 6)),
    "rms-norm": lambda: nn.RMSNorm(6),
    "local-response-norm": lambda: nn.LocalResponseNorm(3),
    "max-pool": lambda: nn.MaxPool2d(2),
    "avg-pool": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "adaptive-pool": lambda: nn.AdaptiveAvgPool2d((4, 3)),
    "pixel-shuffle": lambda: nn.PixelShuffle(2),
    "upsampling": lambda: nn.UpsamplingNearest2d(scale_factor=2),
    "flatten-linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, 5)),
    "softmax": lambda: nn.Softmax(1),
    "prelu": lambda: nn.PReLU(4),
    "gelu": lambda: nn.GELU(),
    "mean": lambda: lambda x: x.mean((0, 2, 3)),
    "mean-of-all": lambda: lambda x: x.mean(),
    "var": lambda: lambda x: ops.var(x, (0, 2)),
    "std-of-all": lambda: lambda x: ops.std(x),
    "sum": lambda: lambda x: x.sum(0),
    "max": lambda: lambda x: x.max((0, 1)),
    "logsumexp": lambda: lambda x: ops.logsumexp(x, 0),
    "reshape": lambda: lambda x: x.reshape(x.shape[0] * 4, 36),
    "reshape-minus-one": lambda: lambda x: x.reshape(-1, 12),
    "transpose": lambda: lambda x: x.transpose(1, 0, 3, 2) * 2,
    "permute-reshape": lambda: lambda x: x.transpose(0, 2, 3, 1).reshape(-1, 4),
    "expand": lambda: lambda x: ops.expand_dims(x, 0),
    "concat": lambda: lambda x: ops.concat([x, x * 2], 0),
    "stack": lambda: lambda x: ops.stack([x, x * 2], 1),
    "slice": lambda: lambda x: x[:, 1:3, ::2],
    "first": lambda: lambda x: x[0] * x[-1],
    "all-but-first": lambda: lambda x: x[:-1].sum() + x[::-1],
    "pad": lambda: lambda x: ops.pad(x, ((1, 0), (0, 0), (1, 1), (1, 1))),
    "flip": lambda: lambda x: ops.flip(x, 0),
    "broadcast": lambda: lambda x: x + ops.zeros((x.shape[0], 1, 1, 6)),
    "by-size": lambda: lambda x: x / x.shape[0] + x.size * 0.5,
    "dropout-eval": lambda: nn.Dropout(0.5).eval(),
    "where": lambda: lambda x: ops.where(x > 0, x, 0.5),
    "matmul": lambda: lambda x: x @ real(6, 3),
    "matmul-own": lambda: lambda x: x @ x.transpose(0, 1, 3, 2),
    "einsum": lambda: lambda x: ops.einsum("nchw,cd->nd", x, real(4, 3)),
    "outer-batch": lambda: lambda x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T,
    "attention": lambda: lambda x: ops.scaled_dot_product_attention(x, x, x, is_causal=True),
    "encoder": lambda: _Encoder(),
    "log-softmax-nll": lambda: lambda x: ops.log_softmax(x, 1)[:, 2],
    "mse": lambda: lambda x: ops.mse_loss(x, x * 0.5),
    "cumsum": lambda: lambda x: ops.cumsum(x, 1),
    "roll": lambda: lambda x: ops.roll(x, 1, 2),
    "tile": lambda: lambda x: ops.tile(x, (1, 2, 1, 1)),
    "sort": lambda: lambda x: ops.sort(x, 1),
    "sort-along-the-size": lambda: lambda x: ops.sort(x, 0),
    "argsort": lambda: lambda x: ops.argsort(x, 2).astype("float32") * x,
    "topk": lambda: lambda x: ops.topk(x, 2, 1)[0],
    "index-list": lambda: lambda x: x[:, [0, 2, 2]],
    "reflection-pad": lambda: nn.ReflectionPad2d(2),
    "padding-same": lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular"),
    "eye": lambda: lambda x: ops.matmul(ops.eye(x.shape[0]), x.reshape(x.shape[0], -1)),
    "tril": lambda: lambda x: ops.tril(x[:, 0, 0] @ x[:, 0, 0].T),
    "arange": lambda: lambda x: x[:, 0, 0, 0] * ops.arange(x.shape[0]),
    "repeat": lambda: lambda x: ops.repeat(x, 2, 1),
    "var-of-a-sample": lambda: lambda x: ops.var(x, (0, 2), correction=1),
    "roll-along-the-size": lambda: lambda x: ops.roll(x, 1, 0) * ops.roll(x, (-2, 1), (0, 1)),
    "roll-of-all": lambda: lambda x: ops.roll(x, 7),
    "index-pairs": lambda: lambda x: x[ops.arange(x.shape[0]), ops.argmax(x[:, :, 0, 0], axis=1)],
    "index-by-size": lambda: lambda x: x[x.shape[0] // 2] * x[x.shape[0] - 1],
    "index-array-along-the-size": lambda: lambda x: x[[-1, 0]],
    "one-hot-of-size": lambda: (
        lambda x: ops.matmul(
            ops.one_hot(ops.arange(x.shape[0]), x.shape[0], "float32"), x.reshape(x.shape[0], -1)
        )
    ),
    "linspace": lambda: lambda x: x[:, 0, 0, 0] * ops.linspace(0, 1, x.shape[0]),
    "split-by-size": lambda: lambda x: ops.split(x, [x.shape[0] // 2], 0)[1],
}


class _Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x[:, 0])


def loss_and_gradients(network, x):
    y = network(x)
    loss = (y * ops.cos(y)).mean()
    variables = [x] + (list(network.parameters()) if isinstance(network, nn.Module) else [])
    return [y, loss, *mg.grad(loss, variables)]


def check_sizes(make, symbolic, shapes):
    """Assert that a function of symbolic sizes has the bits of one for each of the shapes."""
    nn.manual_seed(0)
    network = make()
    cg = mg.comp_graph("reference", {"graph_opt_level": 0})
    x = mg.input("x", symbolic)
    function = cg.compile([x], loss_and_gradients(network, x))
    for shape in shapes:
        fixed = mg.input("x", shape)
        expected = cg.compile([fixed], loss_and_gradients(network, fixed))(real(*shape))
        for y, of_fixed in zip(function(real(*shape)), expected, strict=True):
            np.testing.assert_array_equal(y, of_fixed, strict=True)
