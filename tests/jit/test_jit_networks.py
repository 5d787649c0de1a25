"""Level 3 from outside: kernels next to heavy ops, gradients and updates."""

import numpy as np
import pytest
from level_3 import array, assert_same, check, compilations, compiled
from needs import needs_compiler, needs_onednn
from residual_block import ResidualBlock

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.program import MemorySpace

pytestmark = needs_compiler


def residual(x, w, scale):
    y = ops.relu(x * scale)
    z = ops.conv2d(y, w, padding=1)
    return ops.relu(z * scale + y), z.mean((0, 2, 3))


def test_kernels_around_a_convolution():
    check(residual, array(2, 8, 9, 9), array(8, 8, 3, 3) / 9, array(8, 1, 1), signs=False)


def test_batch_norm_by_hand_is_one_kernel_and_stores_little():
    """It stores the result, the statistics and their functions, but not x - mean."""
    x, scale = mg.input("x", (4, 8, 9, 9)), mg.input("scale", (8, 1, 1))
    w = mg.Parameter(array(8, 8, 3, 3) / 9, name="w")
    h = ops.conv2d(x, w, padding=1)
    mean = h.mean((0, 2, 3), keepdims=True)
    centred = h - mean
    variance = (centred * centred).mean((0, 2, 3), keepdims=True)
    y = ops.relu(centred * ops.rsqrt(variance + 1e-5) * scale)
    z = ops.conv2d(y, w, padding=1)
    running = [mg.Parameter(np.ones((1, 8, 1, 1), "float32")) for _ in range(2)]
    updates = {p: p * 0.9 + v * 0.1 for p, v in zip(running, (mean, variance), strict=True)}
    outputs = [z, *mg.grad((z * ops.tanh(z)).sum(), [x, scale, w])]
    arrays = [array(*x.shape), array(*scale.shape, seed=2)]
    results = {}
    for level, device in ((0, "reference"), (3, "cpu")):
        for p in running:
            p.assign(np.ones(p.shape))
        function = compiled(outputs, [x, scale], updates, level, device)
        results[level] = [*function(*arrays), *(p.numpy() for p in running)]
    for new, old in zip(results[3], results[0], strict=True):
        assert_same(new, old, 2e-4, signs=False)
    forward = function.report().kernels[0]
    assert {"sum", "rsqrt", "relu"} <= set(forward.ops)
    assert forward.bytes < 2.1 * h.spec.nbytes


def test_what_is_cheap_is_computed_again_in_the_backward_pass():
    """Neither pass stores x - mean: the backward pass reads x again."""
    x = mg.input("x", (64, 256))
    w = mg.Parameter(array(256, 256), name="w")
    h = x @ w
    y = ops.tanh((h - h.mean(1, keepdims=True)) * 2) @ w
    outputs = [y, *mg.grad((y * y).sum(), [w])]
    function = compiled(outputs, [x])
    forward = function.report().kernels[0]
    assert forward.outputs <= 2  # the mean, and what the product reads
    values = array(64, 256, seed=1) / 16
    reference = compiled(outputs, [x], level=0, device="reference")
    for result, expected in zip(function(values), reference(values), strict=True):
        assert_same(result, expected, 1e-4, signs=False)


def test_parameters_are_updated_in_place_and_together():
    """Each new value depends on the old values of both; one kernel overwrites both."""
    a, b = (mg.Parameter(array(40, 50, seed=i), name="ab"[i]) for i in range(2))
    old = a.numpy(), b.numpy()
    y = ops.exp(a) * b
    function = compiled([], [], {a: y, b: y - ops.sin(a)})
    function()
    y = np.exp(old[0]) * old[1]
    assert_same(a.numpy(), y)
    assert_same(b.numpy(), y - np.sin(old[0]))
    report = function.report()
    assert [op for op, *_ in report.steps] == ["fused"] and report.memory.arena_bytes == 0


@pytest.mark.parametrize("shape", [(30, 30), (30, 1), (1, 30)])
def test_an_update_that_reads_its_parameter_elsewhere_is_right(shape):
    p = mg.Parameter(array(30, 30), name="p")
    old = p.numpy()
    scale = p[: shape[0], : shape[1]]
    function = compiled([], [], {p: p * 2 + p.T + scale})
    for _ in range(2):
        function()
        old = old * 2 + old.T + old[: shape[0], : shape[1]]
        assert_same(p.numpy(), old)


def network(kind):
    """Return inputs, loss and module of a small version of a well-known network."""
    labels = mg.input("labels", (4,), "int64")
    if kind == "mlp":
        x = mg.input("x", (4, 100))
        parts = [nn.Linear(100, 60), nn.ReLU(), nn.Dropout(0.5)]
        parts += [nn.LayerNorm(60), nn.Linear(60, 10)]
    elif kind == "alexnet":
        x = mg.input("x", (4, 3, 33, 33))
        parts = [nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.LocalResponseNorm(5)]
        parts += [nn.MaxPool2d(3, 2), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten()]
        parts += [nn.Dropout(0.5), nn.Linear(16 * 49, 50), nn.ReLU(), nn.Linear(50, 10)]
    else:
        x = mg.input("x", (4, 3, 16, 16))
        parts = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        parts += [ResidualBlock(16), ResidualBlock(16)]
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    net = nn.Sequential(*parts)
    for i, p in enumerate(net.parameters()):
        p.assign(array(*p.shape, seed=i) * 0.1 + (p.ndim == 1))
    return [x, labels], ops.cross_entropy(net(x), labels), net


OPTIMIZERS = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.01, momentum=0.9, weight_decay=1e-3),
    # With an eps above the rounding of gradients that are zero, so that its steps there are small.
    "adam": lambda ps: optim.Adam(ps, lr=0.01, eps=1e-3),
}
every_training = pytest.mark.parametrize(
    ("kind", "optimizer"),
    [("mlp", "adam"), ("alexnet", "sgd"), ("resnet", "sgd"), ("resnet", "adam")],
)


def training(kind, optimizer, level, **options):
    inputs, loss, net = network(kind)
    opt = OPTIMIZERS[optimizer](net.parameters())
    updates = {**opt.minimize(loss), **net.updates()}
    return compiled([loss], inputs, updates, level, **options), net, opt


@every_training
def test_networks_train_as_at_level_0(kind, optimizer):
    losses, weights = [], []
    for level, device in ((0, "reference"), (3, "cpu")):
        step, net, _ = training(kind, optimizer, level, device=device, num_threads=2)
        x, _ = step._inputs
        batch = array(*x.shape, seed=5), np.array([1, 7, 3, 3])
        losses.append([float(step(*batch)[0]) for _ in range(4)])
        weights.append(net.state_dict())
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-4)
    for name, value in weights[0].items():
        if optimizer == "sgd":  # Adam makes a full step from a gradient that is zero up to rounding
            assert_same(weights[1][name], value, 2e-4, signs=False)


def held(function):
    """Return the peak of memory for intermediate results, and the bytes that wait for a launch."""
    program = function._program
    changes = [0] * (len(program.steps) + 2)
    heirs = {b.successor for b in program.buffers}
    for buffer in program.buffers:
        if buffer.space is MemorySpace.ARENA and buffer not in heirs:
            last = buffer
            while last.successor:
                last = last.successor
            changes[buffer.first] += buffer.nbytes
            changes[last.last + 1] -= buffer.nbytes
    together = [step for step in program.steps if hasattr(step.node.op, "groups")]
    waiting = {v.buffer: v.buffer.nbytes for s in together for v in s.inputs}
    waiting = sum(n for b, n in waiting.items() if b.space is MemorySpace.ARENA)
    return max(np.cumsum(changes)), waiting


@needs_onednn  # products have scratch memory without it
@every_training
def test_no_more_memory_is_held_than_without_kernels(kind, optimizer):
    """Except for the gradients of small parameters that wait for one launch."""
    without, _ = held(training(kind, optimizer, 2)[0])
    peak, waiting = held(training(kind, optimizer, 3)[0])
    assert peak <= without + waiting


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_updates_of_small_parameters_are_one_launch(optimizer):
    step, net, _ = training("resnet", optimizer, 3)
    (launch,) = (k for k in step.report().kernels if " more" in k.name)
    states = {"sgd": 2, "adam": 3}[optimizer]
    small = [p for p in net.parameters() if p.ndim == 1]
    assert launch.outputs >= states * len(small) - states  # but for a bias with its sum


# ---------------------------------------------------------------- compilations


def test_another_learning_rate_compiles_nothing():
    step, net, opt = training("mlp", "adam", 3)
    x, _ = step._inputs
    batch = array(*x.shape), np.array([1, 7, 3, 3])
    before = net.state_dict()
    opt.lr = 0.0
    assert compilations(lambda: step(*batch)) == 0
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    OPTIMIZERS["other"] = lambda ps: optim.Adam(ps, lr=0.5, eps=1e-3)
    try:
        assert compilations(lambda: training("mlp", "other", 3)) == 0
    finally:
        del OPTIMIZERS["other"]
