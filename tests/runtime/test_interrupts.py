"""A call is done or not done, whatever interrupts it (`runtime/function.py`)."""

import gc
import os
import signal
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from needs import needs_compiler, needs_onednn
from new_process import python

import minigraph as mg
from minigraph import ops
from minigraph.devices.cpu import compiler
from minigraph.devices.reference import run_step
from minigraph.platform.signals import signals_deferred

SIZE = 4096
LONG = 1025  # elements of a window of which NumPy computes the average


class Interrupt(Exception):
    """The error that the handler of a signal raises here."""


def swapping(device, steps=(), **options):
    """A function that swaps two parameters and counts, and what to check after each call.

    steps  ops that x goes through before it is added to a third parameter
    """
    a, b = mg.Parameter(np.zeros(SIZE, "float32")), mg.Parameter(np.ones(SIZE, "float32"))
    total, count = mg.Parameter(np.zeros(SIZE, "float32")), mg.Parameter(0)
    x = mg.input("x", (SIZE,))
    y = x
    for step in steps:
        y = step(y)
    updates = {a: b, b: a, total: total + y, count: count + 1}
    function = mg.comp_graph(device, {"num_threads": 1, **options}).compile([x], [y], updates)

    def check():
        done = int(count.numpy())
        assert function.calls == done
        for parameter, value in ((a, done % 2), (b, 1 - done % 2), (total, done)):
            np.testing.assert_array_equal(parameter.numpy(), value)
        return done

    return function, check


ONES = np.ones(SIZE, "float32")


@contextmanager
def interrupted_at(point):
    """Raise Interrupt where Python may run a handler: it begins a function, or C code returns.

    point  which of these places, counted from here
    """
    left = point

    def profile(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Interrupt

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


@needs_compiler  # without one, signals wait while Python runs steps
@pytest.mark.parametrize("device, level", [("reference", 0), ("cpu", 0), ("cpu", 2), ("cpu", 3)])
def test_an_interrupt_at_any_place_in_python_leaves_a_call_done_or_not_done(device, level):
    function, check = swapping(device, graph_opt_level=level)
    function(ONES)
    done, point, whole = 1, 0, False
    while not whole:
        try:
            with interrupted_at(point):
                function(ONES)
                whole = True
        except Interrupt:
            pass
        assert check() in (done, done + 1)
        done, point = check(), point + 1
    assert 20 < point < 2000
    function(ONES)
    assert check() == done + 1


@contextmanager
def alarms():
    """Give a function that sets an alarm after so many seconds, which raises Interrupt."""

    def raising(number, frame):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, raising)
    gc.disable()  # what is raised in the callbacks that other packages give it is lost
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


def in_python(x):
    """Return averages of long windows, which no native kernel computes, of equal numbers."""
    row = ops.reshape(x, (1, 1, 1, SIZE))
    averages = ops.avg_pool2d(row, (1, LONG), 1, (0, LONG // 2), count_include_pad=False)
    return ops.reshape(averages, (SIZE,))


@needs_compiler
def test_a_profile_after_an_interrupt_restarts_loops():
    p, x, steps = mg.Parameter(np.zeros(4)), mg.input("x", (4,), "float64"), 3 * 10**7
    last, _ = ops.scan(lambda c, v: (c + 1, None), x, None, length=steps)
    function = mg.comp_graph("cpu", {"num_threads": 1}).compile([x], [], {p: last})
    with alarms() as alarm, pytest.raises(Interrupt):
        alarm(0.01)  # a loop pauses after 0.1 seconds
        while True:
            function(np.zeros(4))
    p.assign(np.zeros(4))
    function.profile(np.ones(4), calls=1)
    np.testing.assert_array_equal(p.numpy(), np.full(4, 1 + steps))


@needs_compiler
def test_an_error_in_a_kernel_leaves_all_parameters_as_they_were(monkeypatch):
    function, check = swapping("cpu", (in_python,), graph_opt_level=3)
    function(ONES)

    def without_memory(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("minigraph.devices.reference.run_step", without_memory)
        with pytest.raises(MemoryError):
            function(ONES)
    assert check() == 1
    function(ONES)
    assert check() == 2


@needs_onednn
@pytest.mark.parametrize("level", [0, 3])
def test_without_a_compiler_an_interrupt_between_updates_in_place_waits(level, monkeypatch):
    monkeypatch.setattr(compiler, "compiler", lambda: None)
    function, check = swapping("cpu", graph_opt_level=level)

    def interrupted(step, kernel, memory):
        run_step(step, kernel, memory)
        os.kill(os.getpid(), signal.SIGALRM)

    with alarms(), monkeypatch.context() as patch:
        patch.setattr("minigraph.devices.reference.run_step", interrupted)
        with pytest.raises(Interrupt):
            function(ONES)
    done = check()
    assert done <= 1
    function(ONES)
    assert check() == done + 1


def test_a_function_that_a_signal_calls_while_it_runs_says_so():
    function, check = swapping("reference")
    errors = []

    def call(number, frame):
        try:
            function(ONES)
        except mg.GraphError as error:
            errors.append(str(error))

    before = signal.signal(signal.SIGALRM, call)
    try:
        while not errors:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
            for _ in range(20):
                function(ONES)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "the handler of a signal called a function" in errors[0]
    check()


# ---------------------------------------------------------------- signals that wait


def test_held_signals_come_at_the_end_of_the_block():
    with alarms():
        handler = signal.getsignal(signal.SIGALRM)
        reached = False
        with pytest.raises(Interrupt), signals_deferred():
            os.kill(os.getpid(), signal.SIGALRM)
            reached = True
        assert reached
        assert signal.getsignal(signal.SIGALRM) is handler
        with pytest.raises(Interrupt):
            os.kill(os.getpid(), signal.SIGALRM)


def test_a_held_signal_comes_also_where_the_block_raises():
    with alarms(), pytest.raises(Interrupt) as error, signals_deferred():
        os.kill(os.getpid(), signal.SIGALRM)
        raise ValueError("of the block")
    assert isinstance(error.value.__context__, ValueError)


def test_each_held_signal_is_handled_though_the_handler_of_the_first_raises():
    seen = []

    def note(number, frame):
        seen.append(number)
        raise Interrupt

    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    before = [signal.signal(number, note) for number in numbers]
    try:
        with pytest.raises(Interrupt), signals_deferred():
            for number in numbers:
                os.kill(os.getpid(), number)
        assert [signal.getsignal(number) for number in numbers] == [note] * 3
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    assert seen == [*numbers]


PRODUCTS = """
import signal
import sys
import threading
import numpy as np
import minigraph as mg

kind, timer = (getattr(signal, name) for name in sys.argv[1:3])
count, wanted = 0, int(sys.argv[3])
x, w = mg.input("x", (256, 512)), mg.input("w", (512, 128))
options = {"num_threads": int(sys.argv[4]), "autotune": "off", "graph_opt_level": 0}
function = mg.comp_graph("cpu", options).compile([x, w], [x @ w, w @ w.T])
rng = np.random.default_rng(0)
arrays = [rng.normal(size=node.shape).astype("float32") for node in (x, w)]

def note(number, frame):
    global count
    count += 1

def call():
    want = function(*arrays)
    while count < wanted:
        for found, y in zip(function(*arrays), want, strict=True):
            np.testing.assert_array_equal(found, y)

signal.signal(kind, note)
signal.setitimer(timer, 1e-4, 1e-4)
if sys.argv[5:] == ["elsewhere"]:
    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():  # the handlers run here
        thread.join(1e-3)
else:
    call()
signal.setitimer(timer, 0)
"""
BUFFERED = {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # oneDNN lets the stack pointer lead to the heap


@needs_onednn
def test_a_signal_that_is_handled_while_a_product_runs_overwrites_nothing():
    python("-c", PRODUCTS, *("SIGALRM", "ITIMER_REAL", "2000", "1"), **BUFFERED)


@needs_onednn
@pytest.mark.parametrize("where", [("1", "elsewhere"), ("2",)], ids=["a thread", "a team"])
def test_a_timer_of_processor_time_overwrites_nothing_in_other_threads(where):
    """The system sends its signal, with which programs are profiled, to any thread that runs."""
    python("-c", PRODUCTS, *("SIGPROF", "ITIMER_PROF", "200"), *where, **BUFFERED)


AT_THE_END = """
import atexit
import sys
atexit.register(lambda: print(function(x).shape, function(x)[0, 0, 0, 0].round(2)))  # as the last
import numpy as np
import minigraph as mg
from minigraph import ops

images = mg.input("images", (2, 16, 8, 8))
cg = mg.comp_graph("cpu", {"autotune": "off", "graph_opt_level": int(sys.argv[1])})
function = cg.compile([images], ops.conv2d(images, np.ones((32, 16, 3, 3), "float32")))
x = np.ones(images.shape, "float32")
function(x)
"""


@pytest.mark.parametrize("level", [0, 3])
def test_functions_can_be_called_until_the_program_has_ended(level):
    """As a daemon thread does while the handlers of atexit run."""
    assert python("-c", AT_THE_END, level) == ("(2, 32, 6, 6) 144.0\n", "")
