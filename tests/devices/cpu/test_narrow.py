"""Integers in a smaller type: those that fit, and those that do not."""

import itertools

import numpy as np
import pytest
from needs import needs_compiler

import minigraph as mg
from minigraph.devices.cpu import narrow
from minigraph.graph import INTEGERS, can_cast, limits

PAIRS = [
    (source, target)
    for source, target in itertools.product(INTEGERS, INTEGERS)
    if can_cast(source, target) and not np.can_cast(source, target)
]


@needs_compiler
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=str)
def test_many_integers_are_cast_or_refused_by_one_kernel(source, target, monkeypatch):
    low, high = max(limits(source)[0], limits(target)[0]), limits(target)[1]
    drawn = np.random.default_rng(0).integers(low, high, (3, narrow.MANY), source, endpoint=True)
    drawn[2, -1], drawn[0, 0] = low, high
    with monkeypatch.context() as patch:
        patch.setattr(narrow, "cast", lambda *_: pytest.fail("NumPy casts"))
        made = narrow.narrow(drawn, target, on_disk=True)
    assert made.dtype == target
    np.testing.assert_array_equal(made, drawn)
    for number, at in itertools.product({*limits(source), low - 1, high + 1}, ((0, 0), (2, 700))):
        if limits(source)[0] <= number <= limits(source)[1] and not low <= number <= high:
            wrong = drawn.copy()
            wrong[at] = number
            with pytest.raises(mg.DTypeError, match=rf"^{number} at \({at[0]}, {at[1]}\) does not"):
                narrow.narrow(wrong, target, on_disk=True)


def test_a_call_refuses_one_of_many_integers_that_does_not_fit():
    x = mg.input("x", (2 * narrow.MANY,), "int32")
    count = mg.comp_graph().compile([x], x.sum())
    given = np.ones(2 * narrow.MANY, np.int64)
    for layout in (lambda v: v, lambda v: np.repeat(v, 2)[::2], lambda v: v.astype(">i8")):
        assert count(layout(given)) == given.size
        wrong = given.copy()
        wrong[-1] = 1 << 31
        with pytest.raises(mg.DTypeError, match=rf"input x .*2147483648 at \({given.size - 1},\)"):
            count(layout(wrong))
