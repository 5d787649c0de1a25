"""Graphs at each level, and generated sources, as text: read the diff, then update.

    pytest tests/test_golden.py --update-golden

What changes here changes for every user: which ops run, and what the compiler gets.
"""

from pathlib import Path

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.graph import Graph
from minigraph.jit.c.source import c_source
from minigraph.jit.fused import Fused
from minigraph.jit.kernel import specialise
from minigraph.passes.kernels.horizontal_fusion import HorizontalFusionLimits
from minigraph.passes.levels import optimize, pipeline

GOLDEN = Path(__file__).parent / "golden"


def check(name, text, request):
    path = GOLDEN / name
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def at_level(graph, level):
    """Return the graph as a level leaves it."""
    stages = optimize(
        graph,
        pipeline(level, False, 2 if level == 3 else 0, horizontal_fusion=HorizontalFusionLimits()),
    )
    return stages[-1][0] if stages else graph


def network():
    """A training step: convolution, batch norm, relu, product, cross entropy, Adam."""
    nn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 5),
    )
    x, labels = mg.input("x", (2, 3, 8, 8)), mg.input("labels", (2,), "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss), **net.updates()}
    return Graph((x, labels), (loss, *updates.values()))


@pytest.mark.parametrize("level", range(4))
def test_the_graph_of_a_training_step(level, request):
    check(f"training-{level}.txt", f"{at_level(network(), level)}\n", request)


x = mg.input("x", (64, 1000))
image = mg.input("image", (2, 8, 5, 5))
blocks = mg.input("blocks", (2, 4, 5, 5, 16))
channel = [mg.input(name, (8,)) for name in ("weight", "bias")]
KERNELS = {
    "chain": (ops.tanh(x * 2 + 1) * x,),
    "softmax": (ops.softmax(x),),
    "column-sum": ((x * x).sum(0),),
    "lane-sum": ((blocks * blocks).sum((0, 2, 3)),),
    "batch-norm-relu": (
        ops.relu(ops.batch_norm(image, np.zeros(8), np.ones(8), *channel, training=True)),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_source_of_a_kernel(name, request):
    outputs = KERNELS[name]
    graph = at_level(Graph((x, image, blocks, *channel), outputs), 3)
    (fused,) = [node for node in graph if isinstance(node.op, Fused)]
    kernel = specialise(fused.op.graph, [v.spec.strides for v in fused.inputs])
    source = c_source(kernel.pattern)
    check(f"{name}.c", "\n".join((*source.support, source.text)), request)
