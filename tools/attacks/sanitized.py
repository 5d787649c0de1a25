"""Kernels under AddressSanitizer and UndefinedBehaviorSanitizer.

gcc checks accesses beside an array, on the stack and after the end of a lifetime, and shifts,
divisions, alignment and indices.  Integers wrap around (`-fwrapv`).  A cast of a float
beyond an integer's range may give any integer, as in C and NumPy, so casts are not checked.
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
    """Return the environment variables of a process with checked kernels; none if gcc cannot."""
    if compiler.compiler() is None:
        return {}
    command = [compiler.compiler(), "-print-file-name=libasan.so"]
    library = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
    if not library.is_absolute():
        return {}
    # Leaks are not detected: Python and its libraries do not free all memory at the end.
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


def sanitized(seed, attack=None):
    """Run an attack on numbers with checked kernels; `environment` has the process's variables."""
    assert fences.SANITIZED, (
        "the sanitizer's library must be loaded first: set the variables of `environment`"
    )
    if FLAGS[0] not in compiler.FLAGS:
        compiler.FLAGS = (*compiler.FLAGS, *FLAGS)
    before = mg.jit.stats().compilations
    attack = attack or (examples if seed % 25 == 24 else CHECKED[seed % len(CHECKED)])
    counts = attack(seed)
    counts["kernels compiled"] += mg.jit.stats().compilations - before
    return counts
