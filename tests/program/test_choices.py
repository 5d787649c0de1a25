"""What the passes and the lowering ask `Choices` for: `minigraph.program.choices`."""

from types import SimpleNamespace

import numpy as np
import pytest

import minigraph as mg
from minigraph.autotune import session
from minigraph.autotune.candidate import Candidate, Problem
from minigraph.autotune.policy import Policy
from minigraph.autotune.session import Session
from minigraph.errors import GraphError
from minigraph.graph import Spec
from minigraph.program import Kernel, Tunable
from minigraph.program.choices import HEURISTIC, Choices

X = mg.input("x", (2, 3))


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    monkeypatch.setattr(session, "_unkept", {})


class Made(Kernel):
    maker = "test"

    def __init__(self, algorithm, scratch=0):
        self.algorithm = algorithm
        self.scratch = scratch

    def run(self, inputs, outputs, scratch):
        outputs[0][...] = inputs[0]


def refuse():
    raise GraphError("not to be had")


def choices(*candidates, mode="off", **policy):
    """Return the choices for a device that has these candidates for every node."""
    spec = Spec((2, 3))
    problem = Problem(
        "onednn",
        "copy",
        (spec,),
        (spec,),
        lambda x: (x,),
        lambda x, layout: np.ascontiguousarray(x),
        [("rows", "rows")],
        lambda layouts: candidates,
        1.0,
    )
    tunable = Tunable(problem, ("rows", "rows"))
    device = SimpleNamespace(block=16, tunable=lambda node, strides: tunable)
    return Choices(device, Session(mode, Policy(**policy), 30.0, {}))


def candidate(name, make=None, scratch=0):
    return Candidate(name, ("rows", "rows"), make or (lambda: Made(name, scratch)))


def chosen(found):
    return found.choose(X, [X.spec.strides])


def test_layouts_are_those_of_the_device():
    found = choices()
    assert found.block == 16


def test_equal_problems_share_a_choice_and_so_a_kernel():
    found = choices(candidate("a"))
    first, second = chosen(found), chosen(found)
    assert first is second and first.kernel is second.kernel


def test_without_measurements_the_first_that_can_be_made_is_taken():
    choice = chosen(choices(candidate("a", refuse), candidate("b"), candidate("c")))
    assert (choice.kernel.name, choice.origin, choice.measurement) == ("test b", HEURISTIC, None)


@pytest.mark.parametrize(("limit", "name"), [(None, "a"), (50, "b"), (5, "a")])
def test_a_limit_on_the_workspace_holds_unless_nothing_keeps_it(limit, name):
    found = choices(candidate("a", None, 100), candidate("b", None, 10), workspace_limit=limit)
    assert chosen(found).kernel.algorithm == name


def test_what_was_measured_is_made_by_the_candidate_that_was_measured():
    made = []

    def make():
        made.append(Made("a"))
        return made[-1]

    choice = chosen(choices(candidate("a", make), mode="tune"))
    assert choice.kernel is made[-1] and len(made) == 2  # once to be measured
    assert choice.measurement.name == "a" and choice.rivals == (choice.measurement,)


def test_what_failed_is_not_chosen_again():
    found = choices(candidate("a"), mode="tune")
    first = chosen(found)
    found.quarantine(first, "it failed")
    second = chosen(found)
    assert second.kernel is None and second.rivals[0].error.endswith("it failed")
