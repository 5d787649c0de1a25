"""Many processes at once: children of a process with threads, and crowds on an empty cache."""

import random
from collections import Counter

from new_process import start, wait
from small_network import elsewhere

SECONDS = 150  # in which a process must end

FORKED = """
import os, random, signal, sys
import numpy as np
import minigraph as mg
from minigraph import ops
from small_network import batch, compiled, network

draw = random.Random(int(sys.argv[1]))
threads = draw.choice((1, 2, 3))
x = mg.input("x", (64, 64, 12, 12))
images = np.random.default_rng(0).standard_normal(x.shape, np.float32)

def build(number):
    options = {"graph_opt_level": draw.choice((0, 2, 3)), "num_threads": threads}
    return mg.comp_graph("cpu", options).compile([x], ops.tanh(x * number).sum((0, 2, 3)))

def check(function, number):
    expected = np.tanh(images.astype(np.float64) * number).sum((0, 2, 3))
    np.testing.assert_allclose(function(images), expected, rtol=1e-4, atol=1e-2)

def work(old):
    for turn in draw.sample(("old", "new", "train", "old"), 3):
        if turn == "old":
            check(old, 2)
        elif turn == "new":
            number = draw.randrange(3, 50)
            check(build(number), number)
        else:
            net = network(wide=16)
            assert np.isfinite(compiled(net, 2, num_threads=threads)(*batch()))

old = build(2)
check(old, 2)  # starts its threads
for generation in range(draw.choice((1, 1, 2))):
    children = []
    for _ in range(draw.choice((1, 2, 4))):
        pid = os.fork()
        if not pid:
            signal.alarm(60)
            work(old)
            os._exit(0)
        children.append(pid)
    if draw.random() < 0.5:
        check(old, 2)
    for pid in children:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"a forked child ended with {status}"
    print(len(children))
"""


def forks(seed):
    """Fork a process after its threads have run; the children call, compile and tune."""
    process = start("-W", "default", "-c", FORKED, seed)
    printed, _ = wait(process, timeout=SECONDS)
    return Counter({"forked children": sum(map(int, printed.split()))})


TRAINED = "work(), float(compiled(network(wide=32), 3)(*batch())), work()"


def crowd(seed, folder):
    """Let processes tune and compile the same network on an empty cache at once."""
    draw = random.Random(seed)
    count = draw.choice((2, 3, 6, 12))
    program = f"import json\nfrom small_network import *\nprint(json.dumps([{TRAINED}]))"
    cache = str(folder / "cache")
    processes = [start("-c", program, MINIGRAPH_CACHE_DIR=cache) for _ in range(count)]
    for process in processes:
        wait(process, timeout=SECONDS)
    _, _, counts = elsewhere(folder / "cache", f"[{TRAINED}]")
    assert counts == [0, 0], f"after {count} processes another one measures and compiles {counts}"
    return Counter({"processes in crowds": count, "crowds": 1})


def crowds(seed, folder):
    """Run a crowd for one seed in three, forks for the others."""
    return crowd(seed, folder) if seed % 3 == 0 else forks(seed)
