"""Compiled programs do not depend on hashes, addresses, or the order of sets."""

import new_process
import pytest
from long_runs import long
from needs import needs_compiler

PROGRAM = '''
"""Print what functions are compiled to; sys.argv[1] decides the addresses of objects and hashes."""

import json
import random
import sys
import warnings

import numpy as np
from program.test_recomputation import Tangle
from random_graphs import RandomGraph

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.devices.cpu import compiler, onednn_kernel, walker
from minigraph.graph import Node
from minigraph.program.steps import Buffer, Step
from minigraph.platform.records import encode

TIMES = ("seconds", "speeds")
warnings.simplefilter("ignore", mg.MinigraphWarning)
shuffle, trees, graphs = (random.Random(int(sys.argv[1])), *map(int, sys.argv[2:]))
factor = shuffle.getrandbits(60) | 1
for kind in (Node, mg.Parameter, Buffer, Step):
    kind.__hash__ = lambda self: id(self) * factor % (2**61 - 1)

functions = compiler.KERNELS.functions


def routines_alone(sources, on_disk=True):
    """Compile no kernel: texts are compared, and nothing runs."""
    routines = {walker.WALKER.name, onednn_kernel.EXECUTE.name}
    found = functions([source for source in sources if source.name in routines], on_disk)
    return dict.fromkeys((source.name for source in sources), 0) | found


compiler.KERNELS.functions = routines_alone


def litter():
    """Let the next objects be at other addresses."""
    made = [[object() for _ in range(9)] for _ in range(9000)]
    shuffle.shuffle(made)
    return made[:4000]


def plain(value):
    """Leave out times."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if k not in TIMES}
    return [plain(v) for v in value] if isinstance(value, list) else value


def show(inputs, outputs, updates, options):
    kept = litter()
    try:
        function = mg.comp_graph("cpu", {"autotune": "off", **options}).compile(
            inputs, outputs, updates
        )
    except mg.GraphError as error:
        print(error)
        return
    print(json.dumps(plain(json.loads(encode(function.describe())))))


def training(net, x, limit, **options):
    labels = mg.input("labels", x.shape[:1], "int64")
    loss = ops.cross_entropy(net(x), labels)
    updates = {**optim.Adam(net.parameters()).minimize(loss, clip_norm=1.0), **net.updates()}
    options["graph_opt.memory_limit"] = limit
    show([x, labels], loss, updates, options)


def tree(seed, limit):
    """Elementwise ops that share much, of which recomputation has many orders."""
    pick = random.Random(seed)
    parameters = [mg.Parameter(np.ones(1024, np.float32)) for _ in range(6)]

    def made(depth):
        if depth == 0:
            return pick.choice(parameters)
        if pick.random() < 0.35:
            return pick.choice([ops.exp, ops.tanh])(made(depth - 1))
        return pick.choice([ops.multiply, ops.add])(made(depth - 1), made(pick.randrange(depth)))

    early = [made(5) for _ in range(3)]
    middle = ops.concat([ops.exp(made(3)) for _ in range(6)])
    y = ops.sum(sum(x * middle.sum() for x in early))
    updates = optim.SGD(parameters, lr=0.1).minimize(y) if seed % 2 else {}
    show([], [y, *early[:1]], updates, {"graph_opt_level": 0, "graph_opt.memory_limit": limit})


for level in (0, 2, 3) if trees > 3 else (3,):
    images, words = mg.input("x", (4, 3, 12, 12)), mg.input("x", (4, 6, 16))
    training(Tangle(level), images, 400_000, graph_opt_level=level)
    mixed = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32), nn.Flatten(), nn.Linear(96, 5))
    training(mixed, words, None, graph_opt_level=level)
for seed in range(trees):
    for limit in (50_000, 110_000):
        tree(seed, limit)
for seed in range(graphs):
    graph = RandomGraph(seed)
    show(graph.inputs, graph.outputs, graph.updates, {"graph_opt_level": seed % 4})
'''


@needs_compiler
@pytest.mark.parametrize("trees, graphs, count", [(2, 4, 10), long(6, 300, 318)])
def test_what_is_compiled_is_the_same_whatever_hashes_and_addresses_are(trees, graphs, count):
    one, other = (
        new_process.python("-c", PROGRAM, seed, trees, graphs, PYTHONHASHSEED=str(seed))[0]
        for seed in range(2)
    )
    assert one.count("\n") == count
    assert one.splitlines() == other.splitlines()
