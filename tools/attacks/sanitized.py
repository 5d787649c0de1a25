"""Kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

They are what gcc can check of C: memory beside an array, on the stack and after its end; shifts,
divisions, alignment, indices.  Integers wrap around (`-fwrapv`).  A float out of an integer's range
becomes any integer, as in C and in NumPy, so that cast is not checked.
"""

import functools
import random
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
from example_networks import ALEXNET, RESNET
from small_network import batch, compiled, network

import minigraph as mg
from attacks import fences, numbers
from minigraph import ops, optim
from minigraph.devices.cpu import compiler

FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1")


@functools.cache
def environment():
    """Return the variables of a process whose kernels are checked; none where gcc cannot."""
    if compiler.compiler() is None:
        return {}
    command = [compiler.compiler(), "-print-file-name=libasan.so"]
    library = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    if not library.is_absolute():
        return {}
    # Python and its libraries keep some memory to the end.
    return {
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1",
    }


def small_networks(seed):
    """Train a network with layouts, Winograd's algorithm and an optimizer, each step checked."""
    draw = random.Random(seed)
    net = network(wide=draw.choice((16, 32, 64)))
    function = compiled(net, level=draw.choice((0, 2, 3)), budget=draw.choice((0.0, 2.0)))
    for _ in range(2):
        fences.call(function, batch())
    return Counter({"networks": 1})


def examples(seed):
    """Train AlexNet or ResNet-18 for a step."""
    draw = random.Random(seed)
    model, size = draw.choice(((ALEXNET.AlexNet, 63), (RESNET.resnet18, 32)))
    net = model(10)
    images, labels = mg.input("images", (2, 3, size, size)), mg.input("labels", (2,), "int64")
    loss = ops.cross_entropy(net(images), labels)
    updates = {**optim.Adam(net.parameters(), 1e-3).minimize(loss), **net.updates()}
    options = {"graph_opt_level": draw.choice((0, 2, 3)), "autotune": "off"}
    step = mg.comp_graph("cpu", options).compile([images, labels], loss, updates)
    x = np.random.default_rng(seed).standard_normal((2, 3, size, size), np.float32)
    assert np.isfinite(step(x, np.arange(2)))
    return Counter({"networks": 1})


CHECKED = (
    lambda seed: numbers.graphs(seed, 4),
    numbers.kernels,
    numbers.candidates,
    numbers.candidates,
    small_networks,
)


def sanitized(seed, what=None):
    """Run an attack on numbers with kernels that are checked, in a process that can do so."""
    assert fences.SANITIZED, "the sanitizer's library is not loaded first"
    if FLAGS[0] not in compiler.FLAGS:
        compiler.FLAGS = (*compiler.FLAGS, *FLAGS)
    before = mg.jit.stats().compilations
    attack = what or (examples if seed % 25 == 24 else CHECKED[seed % len(CHECKED)])
    counts = attack(seed)
    counts["kernels compiled"] += mg.jit.stats().compilations - before
    return counts
