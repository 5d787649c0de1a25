"""Measure how the times to compile and to call a function grow with its graph."""

import datetime
import json
import os
import random
import tempfile
import time
from pathlib import Path

import numpy as np

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.cache.machine import processor
from minigraph.options import cpus
from minigraph.platform.regular_file import write_text

ROWS, WIDTH = 8, 16
RECENT = 30  # results before a random op of which it reads two
MAX_CALLS, MAX_SECONDS = 30, 2.0  # of calling a function
MAX_THREADED = 1000  # nodes of the largest graph that is also called with more threads
RANDOM = (
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: ops.maximum(a, b),
    lambda a, b: ops.tanh(a),
    lambda a, b: a - ops.mean(b, 1, keepdims=True),
    lambda a, b: ops.where(a > b, a, b),
)


def add_arguments(parser):
    parser.add_argument("--nodes", default="100,1000,10000,100000", metavar="N,N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements")


def growth(args):
    """Time compiling and calling graphs of tiny arrays with up to 100,000 nodes.

    All the time is overhead.  Compiling is measured as processor time of this process, without that
    of the C compiler: other programs affect it least.  The share of a pass is that of the wall time
    of all passes.  The time of a call is the wall time of the shortest of several.

    chain     elementwise ops, each on the result of the one before
    mlp       layers of a perceptron, with gradients and Adam
    unrolled  steps of a recurrent network that share two matrices, with gradients and Adam
    random    elementwise ops and means of random results; at level 2, since level 3 would compile
              as many different kernels of C
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINIGRAPH_CACHE_DIR"] = folder
        threads = [n for n in (1, 2, 4, 8, 16) if n <= cpus()]
        run = {"date": datetime.date.today().isoformat(), "processor": processor(), "cpus": cpus()}
        run["graphs"] = []
        for count in map(int, args.nodes.split(",")):
            for kind in GRAPHS:
                row = measure(kind, count, threads)
                run["graphs"].append(row)
                microseconds = 1e6 * row["compiling"] / row["nodes"]
                print(f"{kind}, {row['nodes']:,} nodes: {microseconds:.0f} us a node", flush=True)
    if args.json:
        write_text(args.json, json.dumps(run, indent=1) + "\n")


def chain(count):
    x = y = mg.input("x", (ROWS, WIDTH))
    for i in range(count // 2):
        y = ops.abs(y) + x if i % 3 else ops.tanh(y) * 0.5
    return [x], y, {}


def mlp(count):
    x, labels = mg.input("x", (ROWS, WIDTH)), mg.input("labels", (ROWS,), "int64")
    pairs = [(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(max(1, count // 48))]
    net = nn.Sequential(*(layer for pair in pairs for layer in pair))
    loss = ops.cross_entropy(net(x), labels)
    return [x, labels], loss, optim.Adam(net.parameters()).minimize(loss)


def unrolled(count):
    x = h = mg.input("x", (ROWS, WIDTH))
    w, u = (mg.Parameter(np.eye(WIDTH, dtype=np.float32) / 2, name=name) for name in "wu")
    for _ in range(max(1, count // 16)):
        h = ops.tanh(h @ w + x @ u)
    loss = ops.mean(h * h)
    return [x], loss, optim.Adam([w, u]).minimize(loss)


def at_random(count):
    rng = random.Random(0)
    results = [mg.input("x", (ROWS, WIDTH))]
    for _ in range(count):
        a, b = (rng.choice(results[-RECENT:]) for _ in range(2))
        results.append(rng.choice(RANDOM)(a, b))
    return results[:1], ops.sum(sum(results[-RECENT:])), {}


GRAPHS = {"chain": (chain, 3), "mlp": (mlp, 3), "unrolled": (unrolled, 3), "random": (at_random, 2)}


def compiled(kind, count, threads):
    """Return a function and its arguments, and the seconds of processor time to compile it."""
    build, level = GRAPHS[kind]
    inputs, outputs, updates = build(count)
    options = {"graph_opt_level": level, "autotune": "off", "num_threads": threads}
    cg = mg.comp_graph("cpu", options)
    start = time.process_time()
    call = cg.compile(inputs, outputs, updates)
    seconds = time.process_time() - start
    return call, [np.zeros(x.shape, x.dtype) for x in inputs], seconds


def shortest(call, arguments):
    """Return the seconds of the shortest of several calls."""
    times = []
    while len(times) < MAX_CALLS and sum(times) < MAX_SECONDS:
        start = time.perf_counter()
        call(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def measure(kind, count, threads):
    """Return the times to compile and to call a graph of about `count` nodes."""
    call, arguments, seconds = compiled(kind, count, 1)
    report = call.report()
    passes = {}
    for record in report.passes:
        passes[record.name] = passes.get(record.name, 0.0) + record.seconds
    slowest = max(passes, key=passes.get)
    kernels = len(call.profile(*arguments).kernels)
    calls = {1: shortest(call, arguments)}
    for n in threads[1:] if count <= MAX_THREADED else ():
        calls[n] = shortest(*compiled(kind, count, n)[:2])
    return {
        "graph": kind,
        "nodes": report.passes[0].before,
        "kernels": kernels,
        "compiling": seconds,
        "slowest pass": slowest,
        "its share": passes[slowest] / sum(passes.values()),
        "calls": calls,
    }
