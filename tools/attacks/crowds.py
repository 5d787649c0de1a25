"""Many processes at once: forked ones after threads have run, and crowds on an empty cache."""

import random
from collections import Counter

from new_process import start, wait
from small_network import elsewhere

SECONDS = 150  # within which a process has to end

FORKED = """
import os, random, signal, sys
import numpy as np
import minigraph as mg
from minigraph import ops
from small_network import batch, compiled, network

draw = random.Random(int(sys.argv[1]))
threads = draw.choice((1, 2, 3))
x = mg.input("x", (64, 64, 12, 12))
given = np.random.default_rng(0).standard_normal(x.shape, np.float32)

def made(number):
    options = {"graph_opt_level": draw.choice((0, 2, 3)), "num_threads": threads}
    return mg.comp_graph("cpu", options).compile([x], ops.tanh(x * number).sum((0, 2, 3)))

def right(function, number):
    wanted = np.tanh(given.astype(np.float64) * number).sum((0, 2, 3))
    np.testing.assert_allclose(function(given), wanted, rtol=1e-4, atol=1e-2)

def work(old):
    for turn in draw.sample(("old", "new", "train", "old"), 3):
        if turn == "old":
            right(old, 2)
        elif turn == "new":
            number = draw.randrange(3, 50)
            right(made(number), number)
        else:
            net = network(wide=16)
            assert np.isfinite(compiled(net, 2, num_threads=threads)(*batch()))

old = made(2)
right(old, 2)  # its threads are there from now on
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
        right(old, 2)
    for pid in children:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"a forked child ended with {status}"
    print(len(children))
"""


def forks(seed):
    """Fork children of a process whose threads have run; let them call, compile and tune."""
    process = start("-W", "default", "-c", FORKED, seed)
    printed, _ = wait(process, timeout=SECONDS)
    return Counter({"forked children": sum(map(int, printed.split()))})


TRAINED = "work(), float(compiled(network(wide=32), 3)(*batch())), work()"


def crowd(seed, folder):
    """Let processes tune and compile the same network on an empty cache, all at once."""
    draw = random.Random(seed)
    count = draw.choice((2, 3, 6, 12))
    program = f"import json\nfrom small_network import *\nprint(json.dumps([{TRAINED}]))"
    cache = str(folder / "cache")
    processes = [start("-c", program, MINIGRAPH_CACHE_DIR=cache) for _ in range(count)]
    for process in processes:
        wait(process, timeout=SECONDS)
    _, _, done = elsewhere(folder / "cache", f"[{TRAINED}]")
    assert done == [0, 0], f"after {count} processes another one has to measure and compile {done}"
    return Counter({"processes in crowds": count, "crowds": 1})


def crowds(seed, folder):
    """Run forks, or one time in three a crowd."""
    return crowd(seed, folder) if seed % 3 == 0 else forks(seed)
