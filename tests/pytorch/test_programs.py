"""Programs of PyTorch learn the same through `minigraph.torch`: 5 steps, to nine digits.

A short run has each program in one of the two ways.
"""

import copy
import functools

import pytest
from long_runs import long

torch = pytest.importorskip("torch")
from torch_programs import PROGRAMS  # noqa: E402
from trained_pair import QUICK, Pair, eager, same  # noqa: E402

# With this `eps` Adam leaves at rest what has no gradient but rounding errors.
adamw = functools.partial(torch.optim.AdamW, lr=0.01, eps=1e-5)


COMPILED = {"volumes", "grouped queries", "wavenet", "graph", "bags", "bilinear", "spline"}


@pytest.mark.parametrize("name", [long(name) if name in COMPILED else name for name in PROGRAMS])
def test_a_program_learns_what_it_learns_in_pytorch(name):
    program = PROGRAMS[name]
    pair = Pair(adamw, program.make(), program.batch, program.loss)
    pair.train(5)
    pair.same()


@pytest.mark.parametrize("name", [name if name in COMPILED else long(name) for name in PROGRAMS])
def test_a_program_that_is_compiled_learns_the_same_and_runs_nothing_in_pytorch(name, recwarn):
    torch._dynamo.reset()
    program = PROGRAMS[name]
    theirs = program.make().double()
    ours = copy.deepcopy(theirs)
    optimizers = [adamw(model.parameters()) for model in (theirs, ours)]
    compiled = torch.compile(ours, backend="minigraph", options=QUICK)
    for _ in range(5):
        batch = program.batch()
        actual = eager(compiled, optimizers[1], batch, program.loss)
        expected = eager(theirs, optimizers[0], batch, program.loss)
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)
    same(ours, theirs)
    same(*reversed(optimizers))
    assert not [w for w in recwarn if "run in PyTorch" in str(w.message)]
