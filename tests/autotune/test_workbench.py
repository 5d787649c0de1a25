"""Candidates are measured on their problem's workbench, with its arrays and its clock."""

import contextlib

import numpy as np
from problems import FakeProblem, candidate

from minigraph.autotune.candidate import Workbench
from minigraph.autotune.tuner import measure


class Elsewhere(np.ndarray):
    """An array of another library."""


class Bench(Workbench):
    chunk = 3

    def __init__(self):
        self.brought = []
        self.calls = []
        self.entered = 0

    @contextlib.contextmanager
    def current(self):
        self.entered += 1
        yield
        self.entered -= 1

    def empty(self, nbytes):
        assert self.entered
        return super().empty(nbytes).view(Elsewhere)

    def upload(self, array):
        self.brought.append(array.size)
        return array.view(Elsewhere)

    def seconds(self, run, calls, clock):
        assert self.entered
        self.calls.append(calls)
        run()
        return 2e-4


class Double:
    scratch = 8

    def __init__(self, wrong=0.0):
        self.check_results = wrong

    def run(self, inputs, outputs, scratch):
        assert all(type(x) is Elsewhere for x in (*inputs, *outputs, scratch))
        outputs[0][...] = inputs[0] * np.float32(2)
        outputs[0][-1] += np.float32(self.check_results)  # alone in the last chunk


def test_arrays_and_times_are_those_of_the_workbench():
    bench = Bench()
    named = {"right": Double(), "wrong": Double(1.0)}
    problem = FakeProblem(
        *(candidate(name, runner) for name, runner in named.items()),
        shape=(10,),
        meaning=lambda x: (2 * x,) if bench.entered else None,
        workbench=bench,
    )
    right, wrong = measure(problem, clock=lambda: 0.0).measurements
    assert (right.seconds, right.rounds, right.error) == (2e-4, 7, "")
    assert "wrong result: off by 1" in wrong.error
    # Each is checked by one run; groups of short runs take as long as the longest of the short.
    assert bench.calls == [1, 1, *[3] * 7]
    assert len(bench.brought) == 1, "random numbers are brought once"
