"""A problem with two layouts, its candidates, and a clock that they move."""

import itertools

import numpy as np

from minigraph.autotune.candidate import Candidate, Problem, Workbench
from minigraph.autotune.measurement import Measurement, Policy, ProblemTable
from minigraph.autotune.session import Session
from minigraph.graph import Spec

HOST = Workbench()
MACHINE = {"library": "3.2.0", "processor": "one"}


class Clock:
    """A clock that only candidates advance."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Twice:
    """Doubles an array, in a time."""

    scratch = 0

    def __init__(self, clock=None, *times):
        self.clock = clock
        self.times = itertools.cycle(times or [1e-3])
        self.runs = 0

    def run(self, inputs, outputs, scratch):
        self.runs += 1
        if self.clock:
            self.clock.now += next(self.times)
        outputs[0][...] = inputs[0] * inputs[0].dtype.type(2)


def candidate(name, runner=None, layouts=("ab", "ab"), **facts):
    return Candidate(name, layouts, lambda: runner or Twice(), **facts)


def double(x):
    return (2 * x,)


LAYOUTS = list(itertools.product(["ab", "ba"], repeat=2))


class FakeProblem(Problem):
    """Doubles an array, by whichever candidates; its layouts are their own names."""

    kind = "onednn"

    def __init__(
        self,
        *candidates,
        subject="twice",
        work=1.0,
        shape=(5, 7),
        dtype="float32",
        meaning=double,
        workbench=HOST,
        layouts=LAYOUTS,
    ):
        super().__init__()
        self.subject = subject
        self.work = work
        self.inputs = self.results = (Spec(shape, np.dtype(dtype)),)
        self.compute = meaning
        self.workbench = workbench
        self.layouts = {each: each for each in layouts}
        self.offered = candidates

    def meaning(self, *xs):
        return self.compute(*xs)

    def to_layout(self, array, layout):
        return np.ascontiguousarray(array.T if layout == "ba" else array)

    def make_candidates(self, layouts):
        return [c for c in self.offered if c.layouts == layouts]


class Wrong(Twice):
    """Gives the right result and then changes something."""

    def __init__(self, change, scratch=0):
        super().__init__()
        self.change = change
        self.scratch = scratch

    def run(self, inputs, outputs, scratch):
        super().run(inputs, outputs, scratch)
        self.change(inputs, outputs, scratch)


def measurement(name, seconds=1.0, **facts):
    known = {"layouts": ("ab", "ab"), "workspace": 0, "deterministic": True, "precision": "float32"}
    return Measurement(name, **{**known, "rounds": 7, "seconds": seconds, **facts})


def entry_of(*measurements):
    return ProblemTable("twice", measurements).entry("onednn", MACHINE)


def start(store=None, mode="exhaustive", budget=30.0, machine=MACHINE, loaded=None, **other):
    """Return a session; the policy has the fields of `Policy` among the arguments."""
    policy = {f: other.pop(f) for f in Policy.__dataclass_fields__ if f in other}
    return Session(mode, Policy(**policy), budget, machine, store, loaded or {}, **other)
