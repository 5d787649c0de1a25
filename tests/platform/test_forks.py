"""A forked child is not blocked by locks, files or threads of its parent."""

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from long_runs import long
from new_process import python, start

import minigraph as mg
from minigraph import data
from minigraph.data import loader
from minigraph.graph import Graph
from minigraph.platform import forks, trust

PACKAGE = Path(forks.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_child(work):
    """Return whether `work` returns something true in a forked child, within a minute."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def elsewhere(run):
    """Call `run(work)` in another thread: inside, its `work` has begun and does not end."""
    begun, end = threading.Event(), threading.Event()

    def work():
        begun.set()
        end.wait(60)

    thread = threading.Thread(target=run, args=[work])
    thread.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        end.set()
        thread.join()


def holding(lock):
    """Return a function that calls another one while it holds a lock."""

    def run(work):
        with lock:
            work()

    return run


@pytest.mark.parametrize("make", [forks.lock, forks.reentrant_lock])
def test_a_lock_that_another_thread_holds_is_free_in_a_child(make):
    lock = make()
    with elsewhere(holding(lock)):
        assert in_child(lambda: lock.acquire(timeout=1))
        assert not lock.acquire(blocking=False)
    assert lock.acquire(blocking=False)


def test_a_reentrant_lock_stays_with_the_thread_that_forks():
    lock = forks.reentrant_lock()
    with lock:
        child = in_child(lambda: lock.release() is None)
    assert child


def test_a_fork_waits_for_what_must_not_be_in_use_in_a_child():
    lock, begun, done = forks.awaited_lock(), threading.Event(), []

    def use():
        with lock:
            begun.set()
            time.sleep(0.2)
            done.append(True)

    thread = threading.Thread(target=use)
    thread.start()
    assert begun.wait(60)
    assert in_child(lambda: done and lock.acquire(timeout=1))
    thread.join()


def test_every_lock_of_the_package_is_one_that_forks_know():
    construction = re.compile(r"threading\.(Lock|RLock|Condition|Semaphore|BoundedSemaphore)\(")
    for path in PACKAGE.rglob("*.py"):
        assert path == Path(forks.__file__) or not construction.search(path.read_text()), path


def test_a_child_computes_what_another_thread_was_computing():
    order = vars(Graph)["order"]
    lock = getattr(order, "lock", None)  # Python 3.12 has none
    with elsewhere(holding(lock or contextlib.nullcontext())):
        assert in_child(lambda: Graph((), [mg.input("x", (2,)) + 1.0]).order)


def test_a_child_calls_a_function_that_another_thread_was_calling():
    w = mg.Parameter(np.ones(2, np.float32))
    function = mg.comp_graph("reference").compile([], w * 2.0, updates={w: w + 1.0})
    with elsewhere(function._exclusively):
        assert in_child(lambda: (function() == 2).all())
        assert in_child(lambda: (mg.comp_graph("reference").compile([], w + 1.0)() == 2).all())


LOCKED = """
import os, sys, time
from pathlib import Path
from minigraph.platform import trust
with trust.locked_folder(Path(sys.argv[1]), exclusive=True, timeout=0):
    if not os.fork():
        print(os.getpid(), flush=True)
        time.sleep(60)
    time.sleep(0.2)
    os._exit(0)  # as if it were killed
"""


def test_a_child_does_not_keep_a_lock_of_a_parent_that_died(tmp_path):
    with start("-c", LOCKED, tmp_path) as process:
        child = int(process.stdout.readline())
        assert process.wait(60) == 0
        try:
            with trust.locked_folder(tmp_path, exclusive=True, timeout=0):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_cannot_go_on_with_the_epoch_of_its_parent():
    images = data.Synthetic((1, 4, 4), 2, length=12)
    pairs = data.DataLoader(images, 2, workers=2)
    batches = iter(pairs)
    next(batches)

    def work():
        try:
            next(batches)
        except mg.GraphError as error:
            return "iterate over the loader again" in str(error) and len(list(pairs)) == 6

    assert in_child(work)
    assert len(list(batches)) == 5


def test_a_child_that_is_forked_while_a_thread_reads_ahead_is_told_to_begin_anew(monkeypatch):
    """As with the batches of device="cuda"."""
    monkeypatch.setattr(loader, "_uploader", lambda device: lambda batch: batch)
    reading, forked = threading.Event(), threading.Event()

    def read(example, rng):
        if example:
            reading.set()
            assert forked.wait(60)
        return example

    batches = iter(data.DataLoader(range(4), 1, transform=read, device="cpu"))
    next(batches)
    assert reading.wait(60)

    def work():
        with pytest.raises(mg.GraphError, match="iterate over the loader again"):
            next(batches)
        return True

    assert in_child(work)
    forked.set()
    assert len(list(batches)) == 3


# Threads compile, tune and call while children are forked that do the same.
CROWDED = """
import os, random, signal, sys, threading, warnings
import numpy as np
import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler

warnings.simplefilter("ignore")  # a fork in a process with threads is one from Python 3.12 on

def made(i):
    x, w = mg.input("x", (2, i % 7 + 1, 8, 8)), mg.Parameter(np.ones((4, i % 7 + 1, 3, 3)), "w")
    loss = ops.exp(ops.conv2d(x, w, padding=1) * float(i % 3)).sum()
    update = {w: w - 0.0 * mg.grad(loss, [w])[0]}
    options = {"graph_opt_level": 3, "num_threads": 2, "autotune.budget": 1.0}
    return mg.comp_graph("cpu", options).compile([x], loss, update), np.ones(x.shape, "f4")

shared, images = made(0)

def work(random):
    while True:
        if random.random() < 0.3:
            compiler.KERNELS._functions.clear()
        function, argument = made(random.randrange(100))
        function(argument), shared(images), mg.jit.stats()

for seed in range(3):
    threading.Thread(target=work, args=[random.Random(seed)], daemon=True).start()
for i in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        signal.alarm(100)
        function, argument = made(i)
        function(argument), shared(images), mg.autotune.stats()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, i
os._exit(0)
"""


@pytest.mark.parametrize("count", [3, long(20)])
def test_children_forked_among_busy_threads_work(count, tmp_path):
    python("-c", CROWDED, count, MINIGRAPH_CACHE_DIR=str(tmp_path))
