"""A small share of the shapes of `level_sweep.py`: what computes them."""

import pytest
from level_sweep import PROGRAMS, program
from long_runs import long
from needs import needs_compiler

import minigraph as mg

pytestmark = needs_compiler

SHAPES = ((5, 3, 4, 7), (1, 16, 4, 4))
FEW = [name for name in PROGRAMS if "over" not in name or name.split()[-1] == "images"]


@pytest.mark.parametrize(
    "level, shape", [(3, SHAPES[0]), *(long(0, s) for s in SHAPES), long(3, SHAPES[1])]
)
def test_no_step_is_numpys(level, shape):
    """All programs are one function, so that its kernels are compiled side by side."""
    x = mg.input("x", shape)
    ys = [y for name in FEW for y in program(name, x)]
    report = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], ys).report()
    assert report.numpy == [] and "numpy" not in report.makers
