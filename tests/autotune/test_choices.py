"""`minigraph.program.choices`: costs for the passes, and kernels for the lowering."""

import time
from types import SimpleNamespace

import pytest
from problems import LAYOUTS, FakeProblem, start

import minigraph as mg
from minigraph.autotune.candidate import Candidate
from minigraph.autotune.measurement import HEURISTIC
from minigraph.errors import GraphError
from minigraph.program import Kernel, Tunable
from minigraph.program.choices import Choices

pytestmark = pytest.mark.usefixtures("new_process")
X = mg.input("x", (2, 3))


class Made(Kernel):
    maker = "test"

    def __init__(self, algorithm, scratch=0):
        self.algorithm = algorithm
        self.scratch = scratch

    def run(self, inputs, outputs, scratch):
        outputs[0][...] = 2 * inputs[0]


class Slow(Made):
    def __init__(self):
        super().__init__("slow")

    def run(self, inputs, outputs, scratch):
        time.sleep(0.01)
        super().run(inputs, outputs, scratch)


def refuse():
    raise GraphError("not to be had")


def choices(*candidates, mode="off", **policy):
    """Return the choices for a device that has these candidates for every node."""
    tunable = Tunable(FakeProblem(*candidates, shape=(2, 3)), LAYOUTS[0])
    device = SimpleNamespace(blocks=(16,), tunable=lambda node, strides: tunable)
    return Choices(device, start(mode=mode, **policy))


def candidate(name, make=None, scratch=0):
    return Candidate(name, LAYOUTS[0], make or (lambda: Made(name, scratch)))


def chosen(algorithm):
    return algorithm.choose(X, [X.spec.strides])


def test_equal_problems_share_a_choice_and_so_a_kernel():
    algorithm = choices(candidate("a"))
    first, second = chosen(algorithm), chosen(algorithm)
    assert first is second and first.kernel is second.kernel


def test_without_measurements_the_first_that_can_be_made_is_taken():
    choice = chosen(choices(candidate("a", refuse), candidate("b"), candidate("c")))
    assert (choice.kernel.name, choice.origin, choice.measurement) == ("test b", HEURISTIC, None)


@pytest.mark.parametrize(("limit", "name"), [(None, "a"), (50, "b"), (5, "a")])
def test_a_limit_on_the_workspace_holds_unless_nothing_keeps_it(limit, name):
    algorithm = choices(candidate("a", None, 100), candidate("b", None, 10), workspace_limit=limit)
    assert chosen(algorithm).kernel.algorithm == name


def test_a_kernel_is_made_once_to_be_measured_and_chosen():
    subjects = []

    def make():
        subjects.append(Made("a"))
        return subjects[-1]

    choice = chosen(choices(candidate("slow", Slow), candidate("a", make), mode="tune"))
    assert [choice.kernel] == subjects and choice.measurement.name == "a"
    assert choice.all_measurements[1] == choice.measurement


def test_what_failed_is_not_chosen_again():
    algorithm = choices(candidate("a"), mode="tune")
    first = chosen(algorithm)
    algorithm.quarantine(first, "it failed")
    with pytest.warns(mg.MinigraphWarning, match=r"each algorithm of onednn .* run time: it fail"):
        second = chosen(algorithm)
    assert second.kernel is None and second.all_measurements[0].error.endswith("it failed")


def test_a_candidate_that_there_was_no_memory_to_measure_is_left_to_the_heuristic():
    class Large(Made):
        def run(self, inputs, outputs, scratch):
            raise MemoryError

    def refuse(inputs, outputs, scratch):
        raise OSError("it cannot run")

    broken = Made("broken")
    broken.run = refuse
    algorithm = choices(
        candidate("broken", lambda: broken), candidate("large", lambda: Large("large")), mode="tune"
    )
    with pytest.warns(mg.MinigraphWarning, match="could not be measured"):
        assert chosen(algorithm).kernel is broken
    algorithm = choices(candidate("large", lambda: Large("large")), candidate("a"), mode="tune")
    first = chosen(algorithm)
    algorithm.quarantine(first, "it failed")
    assert chosen(algorithm).kernel.algorithm == "large"
