"""Interrupted calls: the state is that before the call, or that after it."""

import random
import signal
import time
import warnings
from collections import Counter
from contextlib import contextmanager, suppress

import numpy as np

import minigraph as mg
from minigraph import ops

LEVELS = (0, 1, 2, 3, -2)


class Interrupter:
    """Sends this process a SIGINT, as Ctrl-C does, after a given time.

    An alarm sends it because its clock is exact: a thread would wait for the interpreter's lock, so
    it could interrupt only where the lock is free.
    """

    def __init__(self):
        self.armed = False

    def _raise(self, number, frame):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    @contextmanager
    def listening(self):
        """Handle the signals inside the block; call it in the main thread."""
        alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        interrupt = signal.signal(signal.SIGINT, self._raise)
        try:
            yield self
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, alarm)
            signal.signal(signal.SIGINT, interrupt)

    def interrupted(self, function, seconds):
        """Call a function, interrupt it after some seconds, and return whether that stopped it."""
        stopped = True
        self.armed = True
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            function()
            stopped = False
            self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.armed = False
        return stopped


def in_numpy(x):
    """Return x plus an average of its first elements, whose long window has no native kernel."""
    row = ops.reshape(x[:500], (1, 1, 1, -1))
    averages = ops.avg_pool2d(row, (1, 1025), 1, (0, 512), count_include_pad=False)
    return x + averages.mean()


class Chain:
    """A function whose updates read one another, and its parameters.

    size        elements of each parameter
    with_numpy  whether NumPy computes a step between the others
    """

    def __init__(self, options, size, with_numpy):
        start = np.arange(size, dtype=np.float32) % 7
        names = ("first", "second", "sum", "mask", "statistics")
        parameters = [mg.Parameter(start + i, name) for i, name in enumerate(names)]
        first, second, total, mask, statistics = self.parameters = parameters
        x = mg.input("x", (size,))
        noise = ops.dropout(x, 0.5)
        between = in_numpy(second) if with_numpy else second
        updates = {
            first: between + 1,
            second: first * 0.5,
            total: total + first - second,
            mask: noise + mask * 0.25,
            statistics: ops.broadcast_to((total + noise).mean(), (size,)),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mg.MinigraphWarning)  # that NumPy computes large steps
            cg = mg.comp_graph("cpu", options)
            self.step = cg.compile([x], [noise, first + second], updates)
        self.x = np.ones(size, np.float32)
        assert self.step.report().makers["numpy"] == with_numpy

    def __call__(self):
        return self.step(self.x)

    def state(self):
        """Return the number of finished calls, and the value of each parameter."""
        return self.step.calls, [p.numpy() for p in self.parameters]


def same(one, other):
    """Whether two states are equal in every bit."""
    return one[0] == other[0] and all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(one[1], other[1], strict=True)
    )


def difference(state, before, after):
    """Return in words how a state differs from the states before and after a call."""
    parts = [f"calls {state[0]} (before {before[0]}, after {after[0]})"]
    for i, (x, old, new) in enumerate(zip(state[1], before[1], after[1], strict=True)):
        is_old, is_new = np.array_equal(x, old), np.array_equal(x, new)
        word = "unchanged" if is_old else "new" if is_new else "mixed"
        parts.append(f"parameter {i} {word}")
    return ", ".join(parts)


def interrupted_calls(seed, count=200):
    """Interrupt `count` calls of one function; check calls and parameters after each."""
    draw = random.Random(seed)
    options = {
        "graph_opt_level": draw.choice(LEVELS),
        "bulk": draw.random() < 0.6,
        "seed": seed % 1000,
        "num_threads": draw.choice((1, 2)),
    }
    size = draw.choice((64, 5_000, 200_000))
    with_numpy = draw.random() < 0.5
    chain, twin = (Chain(options, size, with_numpy) for _ in range(2))
    chain(), twin()
    seconds = min(_seconds(chain, twin) for _ in range(5))
    before = twin.state()
    twin()
    after = twin.state()
    counts = Counter()
    with Interrupter().listening() as interrupter:
        while counts["interrupts"] < count:
            stopped = interrupter.interrupted(chain, max(draw.random() * seconds, 2e-6))
            counts["interrupts" if stopped else "calls that ended first"] += 1
            state = chain.state()
            seconds *= 1.01 if same(state, before) else 0.98  # so that interrupts reach all parts
            if same(state, after):
                counts["done, though interrupted"] += stopped
                before = after
                twin()
                after = twin.state()
                continue
            message = difference(state, before, after)
            assert stopped, f"{options}, {size=}, {with_numpy=}: a call failed: {message}"
            assert same(state, before), f"{options}, {size=}, {with_numpy=}: half a call: {message}"
            counts["not done"] += 1
    return counts


def _seconds(chain, twin):
    """Call both functions once, and return how long the first one took."""
    start = time.perf_counter()
    chain()
    seconds = time.perf_counter() - start
    twin()
    return seconds
