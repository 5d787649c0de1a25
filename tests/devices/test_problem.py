"""Problems are made once for each op, shapes and layouts: `minigraph.devices.problem`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from needs import needs_both

import minigraph as mg
from minigraph.devices.cpu import candidates, onednn
from minigraph.devices.cpu.candidates import CpuProblems
from minigraph.graph import constant
from minigraph.ops.conv import Conv2d
from minigraph.ops.layout import LaidOut, Reorder, packed

pytestmark = needs_both


@pytest.fixture
def problems():
    return CpuProblems(2, on_disk=False)


def tunable(problems, node):
    return problems.tunable(node, [x.spec.strides for x in node.inputs])


def in_blocks(op, x, w):
    n = onednn.block()
    return LaidOut(op, (n, 1), (n,))(mg.input("x", packed(x.shape, n)), w)


def operands(channels=32, size=9):
    return mg.input("x", (2, channels, size, size)), mg.input("w", (channels, channels, 3, 3))


def test_nodes_that_are_the_same_problem_share_it_in_whichever_layout_their_images_lie(problems):
    x, w = operands()
    plain = tunable(problems, Conv2d()(x, w))
    blocked = tunable(problems, in_blocks(Conv2d(), x, w))
    assert plain.problem is blocked.problem
    assert plain.layouts != blocked.layouts
    assert {plain.layouts, blocked.layouts} <= {*plain.problem.layouts.values()}
    others = [
        Conv2d((2, 2))(x, w),
        Conv2d()(*operands(size=8)),
        Conv2d()(x, constant(np.ones(w.shape, "float32"))),
    ]
    assert len({plain.problem, *(tunable(problems, node).problem for node in others)}) == 4


def test_threads_share_no_problem_whose_kernels_two_functions_might_run_at_once(problems):
    node = Conv2d()(*operands())
    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(tunable, problems, node).result().problem
    ours = tunable(problems, node).problem
    assert ours is not theirs and ours.subject == theirs.subject


def test_reorders_of_the_same_images_are_one_problem_in_both_directions(problems):
    x, n = operands()[0], onednn.block()
    there, back = Reorder(n)(x), Reorder(1)(mg.input("y", packed(x.shape, n)))
    assert tunable(problems, there).problem is tunable(problems, back).problem


def test_candidates_are_described_once_until_they_are_released(problems, monkeypatch):
    calls = []

    def generator(arrangement, threads):
        calls.append(arrangement.layouts)
        return ()

    monkeypatch.setattr(candidates, "CANDIDATES", (*candidates.CANDIDATES, generator))
    problem, layouts = tunable(problems, Conv2d()(*operands()))
    first, *_ = problem.candidates(layouts)
    assert next(problem.candidates(layouts)) is first and first.kernel is first.kernel
    for _ in range(2):
        again, *_ = problem.candidates()
        assert again is first
    assert sorted(map(str, calls)) == sorted(map(str, problem.layouts.values()))
    problem.release({first.key})
    assert next(problem.candidates(layouts)) is not first
    measured = first.measurement(0)
    assert problem.kernel(measured) is first.kernel
    problem.release()
    assert problem.kernel(measured) is not first.kernel, "another function has it"
