"""Names of PyTorch that minigraph lacks raise one line with the replacement.

Calls in the manner of PyTorch, and their answers, are in `tests/wrong_calls/pytorch.txt`.
"""

import operator
import re
import warnings

import numpy as np
import pytest

import minigraph as mg
from minigraph import data, nn, ops, optim
from minigraph.errors import hints

NET = nn.Sequential(nn.Linear(4, 3))
X = mg.input("x", (2, 4))
ADAM = optim.Adam(NET.parameters())
SIZED = mg.input("sized", (None, 4))
CG = mg.comp_graph("reference")
STEP, ANY_STEP = CG.compile([X], X * 2), CG.compile([SIZED], SIZED * 2)
PARTS = {"mg": mg, "nn": nn, "ops": ops, "optim": optim}
# By part of the table: what lacks the names, and what errors call it.
LACKING = {
    "expressions": [(X, "an expression")],
    "modules": [(NET, "Sequential")],
    "optimizers": [(ADAM, "Adam")],
    "functions": [(STEP, "a compiled function"), (ANY_STEP, "a compiled function")],
    "comp_graphs": [(CG, "a comp_graph")],
    "layers": [(nn, "minigraph.nn")],
    "optim": [(optim, "minigraph.optim")],
    "schedules": [(optim.schedules, "minigraph.optim.schedules")],
    "ops": [(ops, "minigraph.ops")],
    "package": [(mg, "minigraph")],
    "data": [(data, "minigraph.data")],
}


@pytest.mark.parametrize("part", LACKING)
def test_each_name_of_the_table_is_answered(part):
    for owner, what in LACKING[part]:
        for name, answer in hints(part).items():
            if owner is mg and name == "grad":  # ops has no such name, mg has
                continue
            with pytest.raises(AttributeError) as raised:
                getattr(owner, name)
            assert str(raised.value) == f"{what} has no {name}: {answer}"
            assert (raised.value.obj, raised.value.name) == (owner, name)


def test_a_wrong_name_is_an_attribute_error_with_the_nearest_one():
    nearest = {
        "parametres": (NET, "parameters"),
        "minimise": (ADAM, "minimize"),
        "reprot": (STEP, "report"),
        "matmult": (ops, "matmul"),
        "DataLoder": (data, "DataLoader"),
    }
    for name, (owner, near) in nearest.items():
        assert not hasattr(owner, name)
        with pytest.raises(AttributeError, match=f"'{name}'; the nearest is {near}$") as raised:
            getattr(owner, name)
        assert (raised.value.obj, raised.value.name) == (owner, name)


def test_an_array_beside_an_expression_makes_an_expression():
    array = np.full((2, 4), 3, "float32")
    total = np.float32(2) * X
    total += array
    results = (array - X, array**X, array @ X.T, array < X, array == X, total, np.add(array, X))
    result = mg.comp_graph("reference").compile([X], results)(array * 2)
    x = array * 2
    expected = (array - x, array**x, array @ x.T, array < x, array == x, 2 * x + array, array + x)
    for one, other in zip(result, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    with_array = array.copy()
    with_array += X
    assert isinstance(with_array, type(X))


def test_no_name_that_is_not_for_users_is_suggested():
    for owner, name in ((ADAM, "statee"), (mg, "functions"), (nn, "contaner"), (NET, "calls_")):
        with pytest.raises(AttributeError) as raised:
            getattr(owner, name)
        nearest = str(raised.value).partition("the nearest is ")[2]
        assert not nearest.startswith("_")
        assert not nearest or nearest in dir(owner)


def test_every_answer_names_what_exists():
    answers = " ".join(answer for part in LACKING for answer in hints(part).values())
    names = re.findall(r"\b((?:mg|nn|ops|optim)\.\w+(?:\.\w+)*)", answers)
    assert len(names) > 50
    for name in names:
        operator.attrgetter(name.partition(".")[2])(PARTS[name.partition(".")[0]])


def test_what_is_answered_for_sums_and_maxima_by_segment_computes_them():
    n, shape = 3, (3, 2)
    segments, x = mg.input("segments", (4,), "int64"), mg.input("x", (4, 2))
    known = {"ops": ops, "np": np, "n": n, "shape": shape, "segments": segments, "x": x}
    sums, maxima = hints("ops")["segment_max"].split("; ")
    formulas = sums.partition(" adds")[0], maxima.partition(" has")[0]
    results = [
        eval(formula, known) for formula in (*formulas, "ops.one_hot(segments, n).sum(axis=0)")
    ]
    ids, rows = np.array([2, 0, 2, 1]), np.arange(8, dtype="float32").reshape(4, 2)
    total, most, counts = mg.comp_graph("reference").compile([segments, x], results)(ids, rows)
    np.testing.assert_array_equal(total, [[2, 3], [6, 7], [4, 6]])
    np.testing.assert_array_equal(most, [[2, 3], [6, 7], [4, 5]])
    np.testing.assert_array_equal(counts, [1, 1, 2])


def test_a_network_called_with_an_array_warns_of_it_once_for_a_line(monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    with pytest.warns(mg.MinigraphWarning, match="Sequential was called with arrays only") as all_:
        for _ in range(2):
            y = NET(np.ones((2, 4), "float32"))
    assert len(all_) == 1
    assert isinstance(y, type(X + 1))


def test_arrays_beside_expressions_or_inside_a_module_or_of_integers_are_fine():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x, y):
            return x + y + self.fc(np.ones((2, 4), "float32"))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Net()(X, np.ones((2, 4), "float32"))
        nn.Embedding(5, 3)(np.arange(4))
        ops.relu(np.ones(3))
