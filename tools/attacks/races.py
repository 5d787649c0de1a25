"""Races: eight threads use the same parameters and functions at once."""

import random
import sys
from collections import Counter

import numpy as np
from at_once import in_threads

import minigraph as mg
from minigraph import ops

THREADS = 8
SIZE = 5_000  # of a parameter: more than a cache line, too small for a second thread
LEVELS = (0, 1, 2, 3)


class Shared:
    """Parameters that all threads use.

    one, two  equal each other before and after every call, in all their elements
    assigned  threads assign to it, the same number in all elements
    """

    def __init__(self):
        self.one, self.two, self.assigned = (
            mg.Parameter(np.zeros(SIZE, np.float64), name) for name in ("one", "two", "assigned")
        )

    def counter(self, options):
        """Return a function that adds 1 to both parameters, each from the value of the other."""
        one, two = self.one, self.two
        updates = {one: two + 1, two: one + 1}
        return mg.comp_graph("cpu", options).compile([], [one + 0, two + 0], updates)

    def reader(self, options):
        """Return a function that reads all parameters."""
        outputs = [self.one * 1.0, self.two * 1.0, ops.abs(self.assigned)]
        return mg.comp_graph("cpu", options).compile([], outputs)


def uniform(title, *arrays):
    """Return the number in all elements of the arrays; fail if they are not equal."""
    values = sorted({value for array in arrays for value in np.unique(array).tolist()})
    assert len(values) == 1, f"{title} mixes old and new values: {values[:5]}"
    return values[0]


def shared_parameters(seed, times=60):
    """Count in shared parameters from several functions, while others read and assign."""
    draw = random.Random(seed)
    shared, counts = Shared(), Counter()
    options = [
        {"graph_opt_level": draw.choice(LEVELS), "bulk": draw.random() < 0.7, "num_threads": n}
        for n in (1, 1, 2)
    ]
    counters = [shared.counter(o) for o in options]
    reader = shared.reader(options[0])
    interval = sys.getswitchinterval()

    def count(function):
        last = -1.0
        for i in range(times):
            if i % 10 == 9:
                function.profile()
                continue
            value = uniform(f"an output of {options}", *function())
            assert value > last, f"a counter went back from {last} to {value}"
            last = value

    def read_all():
        last = -1.0
        for _ in range(times):
            one, two, assigned = reader()
            value = uniform("an output", one, two)
            assert value >= last, f"a counter went back from {last} to {value}"
            last = value
            uniform("an output of an assigned parameter", assigned)

    def copy():
        for _ in range(4 * times):
            uniform("numpy()", shared.one.numpy())
            uniform("numpy() of an assigned parameter", shared.assigned.numpy())

    def assign():
        for i in range(4 * times):
            shared.assigned.assign(np.full(SIZE, i))

    jobs = [lambda f=function: count(f) for function in (*counters, counters[0])]
    jobs += [read_all, copy, assign, lambda: [f.report() for f in counters * (times // 4)]]
    sys.setswitchinterval(draw.choice((1e-6, 1e-5, 5e-3)))
    try:
        in_threads(*jobs)
    finally:
        sys.setswitchinterval(interval)
    final = uniform("the end", shared.one.numpy(), shared.two.numpy())
    assert final == 4 * times, f"{options}: {4 * times} increments gave {final:g}"
    assert [f.calls for f in counters] == [2 * times, times, times]
    counts["increments"] = 4 * times
    counts["other operations"] = 10 * times
    return counts


def shared_graph(seed, folder, times=6):
    """Compile, call, profile, report, save and load caches, and set options, all at once."""
    draw = random.Random(seed)
    cg = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"})
    x = mg.input("x", (3, SIZE))
    batch = np.random.default_rng(seed).normal(size=(3, SIZE)).astype(np.float32)
    weights = mg.Parameter(np.full(SIZE, 2, np.float32), "weights")
    paths = [folder / f"{i}.cache" for i in range(2)]
    counts = Counter()

    def build(i):
        function = cg.compile([x], [(x * weights + i).sum(1), ops.exp(x) * i])
        sums, scaled = function(batch)
        np.testing.assert_allclose(sums, (batch * np.float64(2) + i).sum(1), rtol=1e-4, atol=1e-2)
        np.testing.assert_allclose(scaled, np.exp(batch.astype(np.float64)) * i, rtol=1e-5)
        return function

    first = build(1)
    first.save_cache(paths[0])
    first.save_cache(paths[1])

    def compile_some():
        for _ in range(times):
            build(draw.randrange(1, 5)).save_cache(draw.choice(paths))

    def load():
        for _ in range(4 * times):
            loaded = cg.load_cache(draw.choice(paths))
            assert not loaded.rejected, loaded.rejected

    def options():
        for i in range(8 * times):
            cg.set_option("graph_opt_level", (3, 2, 1, 0)[i % 4])
            cg.set_option("bulk", bool(i % 2))
            cg.set_option("autotune", "off")

    def use():
        for i in range(8 * times):
            np.testing.assert_array_equal(first(batch)[0].shape, (3,))
            if i % 4 == 0:
                str(first.profile(batch)), str(first.report())

    jobs = [compile_some, compile_some, compile_some, load, load, options, use, use]
    in_threads(*jobs)
    counts["functions compiled"] = 3 * times
    counts["caches saved and loaded"] = 3 * times + 8 * times
    return counts


def races(seed, folder, times=60):
    """Run both kinds of race."""
    return shared_parameters(seed, times) + shared_graph(seed, folder, max(times // 10, 2))
