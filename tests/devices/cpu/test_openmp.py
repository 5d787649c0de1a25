"""Kernels have the threads that they were made for, or do not run."""

import sys
import threading

import numpy as np
import pytest
from long_runs import long
from needs import needs_compiler, needs_onednn
from new_process import python

import minigraph as mg
from minigraph.devices.cpu import openmp

pytestmark = needs_onednn

# A gradient whose oneDNN primitive divides its work among the threads that it was made for.
NETWORK = """
import warnings
import numpy as np
import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import openmp

warnings.simplefilter("default")
rng = np.random.default_rng(0)
x, w = mg.input("x", (8, 64, 7, 7)), mg.input("w", (64, 64, 3, 3))
images, weights = (rng.standard_normal(node.shape, np.float32) for node in (x, w))
y = ops.conv2d(x, w, padding=1)
(gradient,) = mg.grad((y * y).sum(), [w])

def compiled(threads):
    options = {"graph_opt_level": 0, "num_threads": threads}
    return mg.comp_graph("cpu", options).compile([x, w], gradient)

wanted = mg.comp_graph("reference").compile([x, w], gradient)(images, weights)

def right(function):
    return bool(abs(function(images, weights) - wanted).max() < 1e-5 * abs(wanted).max())
"""


def run(program, **environment):
    """Run a program after NETWORK; return the lines that it prints, and its warnings."""
    printed, errors = python("-c", NETWORK + program, **environment)
    return printed.splitlines(), errors


@pytest.mark.parametrize(
    ("variable", "value", "threads"),
    [
        ("OMP_THREAD_LIMIT", "3", 3),
        ("OMP_DYNAMIC", "true", 4),
        long("OMP_THREAD_LIMIT", "1", 1),
        long("OMP_MAX_ACTIVE_LEVELS", "0", 1),
    ],
)
def test_a_result_is_whole_whatever_the_user_says_to_openmp(variable, value, threads):
    program = "print(right(compiled(4)), openmp.team.threads)"
    printed, errors = run(program, **{variable: value})
    assert printed == [f"True {threads}"]
    assert (f"{threads} of 4 threads are used" in errors) == (threads < 4)


LIMITED = """
import resource
one = compiled(1)
print(right(one))  # so that all is loaded
with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
room = pages * resource.getpagesize() + (4 << 20)  # too little for a stack
resource.setrlimit(resource.RLIMIT_AS, (room, resource.RLIM_INFINITY))
print(right(compiled(4)), openmp.team.threads)
"""


def test_a_function_is_compiled_for_as_many_threads_as_the_system_starts():
    printed, errors = run(LIMITED, OMP_STACKSIZE="8M")
    assert printed == ["True", "True 1"]
    assert "1 of 4 threads are used: the system starts no more" in errors


@needs_compiler
def test_a_thread_that_cannot_have_its_threads_gets_an_error(monkeypatch):
    x = mg.input("x", (4, 4))
    cg = mg.comp_graph("cpu", {"graph_opt_level": 0, "num_threads": 2})
    function = cg.compile([x], x @ x)
    monkeypatch.setattr(openmp, "_can_start", lambda count: False)
    caught = []

    def call():
        try:
            function(np.eye(4))
        except mg.DeviceError as error:
            caught.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "cannot have the 2 threads" in caught[0]
    monkeypatch.undo()
    np.testing.assert_array_equal(function(np.eye(4)), np.eye(4))


def test_a_trial_of_threads_leaves_none(monkeypatch):
    before = threading.active_count()
    assert openmp._can_start(3)
    start, left = threading.Thread.start, iter(range(2))

    def refused(thread):
        if next(left, None) is None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert not openmp._can_start(3)
    assert threading.active_count() == before


FORKED = """
import multiprocessing
import os
import signal
import sys

signal.alarm(100)  # a child that hangs is no child for ever
four = compiled(4)
assert right(four)

def fork(work):
    child = os.fork()
    if not child:
        signal.alarm(60)  # which a child does not inherit
        try:
            print(work(), flush=True)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

CHILDREN = """
fork(lambda: right(four))

def forked():
    value = right(four)
    fork(lambda: right(four) and value)
    return right(four)

fork(forked)

def work(number):
    return right(four)

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(all(pool.map(work, range(4))), flush=True)  # before the next fork

tiny = np.full((512, 512), 1e-40, np.float32)

def flushed():
    options = {"graph_opt_level": 3, "num_threads": 4, "autotune": "exhaustive"}
    cg = mg.comp_graph("cpu", options)
    t = mg.input("t", tiny.shape)
    product = cg.compile([t], t @ t)  # measuring it starts the threads
    measured = mg.autotune.stats().measurements > 0
    one = np.eye(512, dtype=np.float32)
    return measured and (product(one) == one).all() and not cg.compile([t], t * 0.5)(tiny).any()

fork(flushed)
print(right(four))
"""


@needs_compiler  # else denormals are not flushed
def test_a_forked_child_calls_compiles_and_tunes_with_threads_of_its_own():
    assert run(FORKED + CHILDREN)[0] == ["True"] * 6


UNSEEN = """
import ctypes
python = ctypes.PyDLL(None)

def late():
    try:
        return four(images, weights)
    except mg.DeviceError as error:
        return "forked, outside of Python" in str(error)

if not python.fork():
    signal.alarm(60)
    python.PyOS_AfterFork_Child()
    print(late(), flush=True)
    os._exit(0)
assert os.wait()[1] == 0
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python itself ends such a child")
def test_a_child_that_was_forked_by_c_gets_an_error_where_it_would_hang():
    assert run(FORKED + UNSEEN)[0] == ["True"]
