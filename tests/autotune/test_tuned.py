"""Tuning as a user sees it: choices and their reasons, policies, and equal results."""

import shutil
from collections import Counter
from ctypes import c_void_p
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from needs import needs_both
from new_process import forget_measurements, python, start, wait
from small_network import DIRECTIONS, batch, compiled, network, work
from tuned_folder import tuned_folder

import minigraph as mg
from minigraph import ops
from minigraph.autotune.measurement import table
from minigraph.cache import open_store
from minigraph.devices.cpu import compiler, onednn, onednn_kernel, walker, winograd

pytestmark = needs_both


@pytest.fixture(scope="module")
def tuned(run_folder):
    """A cache folder in which all is measured and compiled."""
    return tuned_folder(run_folder) / "cache"


@pytest.fixture
def folder(tmp_path, tuned, monkeypatch):
    """The cache folder of a process that begins: a copy of the one in which all is measured."""
    shutil.copytree(tuned, tmp_path / "cache")
    forget_measurements(monkeypatch, tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """The cache folder of a process that begins, in which there is nothing."""
    forget_measurements(monkeypatch, tmp_path / "empty")
    return tmp_path / "empty"


def algorithms(function):
    return function.report().algorithms


def origins(function):
    return {a.origin for a in algorithms(function)}


def choices(function):
    return {(a.subject, a.name, a.layout) for a in algorithms(function)}


def edit(folder, change):
    """Replace each measurement by `change(subject, measurement)`."""
    for entry in open_store(folder).entries("onednn"):
        old = table(entry)
        rows = tuple(change(entry.subject, m) for m in old.measurements)
        new = replace(old, measurements=rows).entry("onednn", dict(entry.environment))
        assert open_store(folder).keep([new], lambda old, new: new)


@pytest.fixture
def of_onednn(folder):
    """The cache folder of a process that begins, in which oneDNN's algorithms alone are right."""

    def change(_, m):
        return structs.replace(m, error="not oneDNN's") if m.name == winograd.NAME else m

    edit(folder, change)
    return folder


def trained(function, net, steps=3, data=None):
    """Return the losses of some steps, and the parameters after them."""
    losses = [function(*(data or batch())) for _ in range(steps)]
    return np.array([*losses, *(x for p in net.updates for x in p.numpy().ravel())])


@pytest.fixture(scope="module")
def as_written():
    """The result of `trained` at level 0."""
    net = network()
    return trained(compiled(net, level=0), net)


def close(dtype="float32"):
    """Return how near results have to be."""
    tolerance = {"float64": 1e-10, "float32": 2e-4, "float16": 2e-2}[dtype]
    return {"rtol": tolerance, "atol": tolerance}


# ---------------------------------------------------------------- when it happens, what it tells


@pytest.mark.parametrize(
    ("level", "option", "tunes"),
    [
        (2, {}, True),
        (1, {}, False),
        (2, {"autotune": "off"}, False),
        (1, {"autotune": "tune"}, True),
    ],
)
def test_levels_from_2_on_tune_unless_the_option_says_otherwise(empty, level, option, tunes):
    function = compiled(level=level, **option)
    assert (work()[0] > 0) == tunes
    assert ("measured" in origins(function), "heuristic" in origins(function)) == (tunes, not tunes)


def test_the_report_has_each_convolution_and_product_with_all_its_candidates(folder):
    function = compiled()
    assert origins(function) == {"stored"}
    assert Counter(a.op for a in algorithms(function)) == DIRECTIONS
    page = function.report().section("algorithms")
    for a in algorithms(function):
        (chosen,) = [c for c in a.candidates if (c.name, " ".join(c.layouts)) == (a.name, a.layout)]
        assert not chosen.error
        assert (chosen.seconds, chosen.workspace) == (a.seconds, a.workspace)
        assert str(a) in page
        stored = f"stored of {len(a.candidates)}, {a.seconds * 1e3:.2f} ms"
        assert str(a) == f"{a.op} {a.result}: {a.name} in {a.layout} ({stored})"
        assert a.line.partition(":")[0].endswith("small_network.py")
        for c in a.candidates:
            assert (c.seconds is None) == bool(c.error)
            assert c.error or (c.seconds > 0 and c.rounds > 0 and c.spread >= 0)
            assert len(c.layouts) == len(a.layout.split())
            assert c.workspace >= 0
    images = {a.op: {c.layouts[0] for c in a.candidates} for a in algorithms(function)}
    assert len(images["conv2d"]) > 1
    assert len(images["matmul"]) == 1


def test_the_report_has_heuristics_without_times(folder):
    for a in algorithms(compiled(autotune="off")):
        assert (a.origin, a.seconds, a.workspace, a.candidates) == ("heuristic", None, None, [])
        assert a.name
        assert str(a) == f"{a.op} {a.result}: {a.name} in {a.layout} (heuristic)"


# ---------------------------------------------------------------- modes and budget


def test_tune_measures_a_few_of_what_exhaustive_does_and_is_stored_and_frozen_alike(empty):
    first = compiled()
    few, compilations = work()
    measured = [a for a in algorithms(first) if a.origin == "measured"]
    for a in measured:
        alike = [c for c in a.candidates if " ".join(c.layouts) == a.layout]
        assert 2 <= len(alike) <= 3 and {c.name for c in alike} >= {a.name}
    left = [a for a in algorithms(first) if a.origin == "predicted"]
    assert left and all(a.seconds is None for a in left)
    assert str(left[0]).endswith(f"{left[0].name} in {left[0].layout} (predicted)")
    for mode in ("tune", "cached", "frozen"):
        again = compiled(autotune=mode)
        assert choices(again) == choices(first)
        assert origins(again) == {"stored", "predicted"}
    assert (work(), mg.autotune.stats().misses) == ((few, compilations), len(algorithms(first)))
    assert origins(compiled(autotune="exhaustive")) == {"measured"}
    assert work()[0] > 2 * few
    assert origins(compiled()) == {"stored"}


# ---------------------------------------------------------------- policies


def right(algorithm):
    return [c for c in algorithm.candidates if not c.error]


def test_a_workspace_limit_is_kept_and_measures_nothing(folder):
    before = compiled()
    limit = max(min(c.workspace for c in right(a)) for a in algorithms(before))
    assert max(c.workspace for a in algorithms(before) for c in right(a)) > limit
    function = compiled(workspace_limit=limit)
    assert all(a.workspace <= limit for a in algorithms(function))
    assert (work()[0], origins(function)) == (0, {"stored"})


def test_a_limit_that_no_candidate_keeps_is_warned_of_once(folder):
    x, w = mg.input("x", (4, 32, 8, 8)), mg.Parameter(np.ones((64, 32, 3, 3), "float32"))

    def convolution():
        options = {"autotune.workspace_limit": 0}
        return mg.comp_graph("cpu", options).compile([x], ops.conv2d(x, w, padding=1))

    with pytest.warns(mg.MinigraphWarning, match="every algorithm for conv2d exceeds") as warned:
        function = convolution()
        convolution()
    assert len(warned) == 1
    (a,) = algorithms(function)
    alike = [c for c in right(a) if " ".join(c.layouts) == a.layout]
    assert a.workspace == min(c.workspace for c in alike) > 0
    assert function(batch()[0]).shape == (4, 64, 8, 8)


def test_determinism_changes_the_choice_of_the_next_compile_and_of_no_earlier_one(folder):
    before = compiled()
    chosen = choices(before)

    def random(subject, m):
        same = (subject, m.name, " ".join(m.layouts)) in chosen
        return structs.replace(m, deterministic=not same)

    edit(folder, random)
    assert choices(compiled()) == chosen
    after = compiled(deterministic=True)
    assert not chosen & choices(after)
    assert choices(before) == chosen
    # Of products a processor may have one implementation only: then NumPy is left.
    assert work()[0] == 0 and origins(after) <= {"stored", "heuristic"}


# ---------------------------------------------------------------- algorithms that fail


@pytest.fixture
def broken(monkeypatch):
    """A function that makes oneDNN refuse kernels of some names from now on.

    written  what they compute, as oneDNN calls it; None: anything
    count    of kernels; -1: all
    """
    real = onednn_kernel.OneDnnKernel.__init__

    def break_(*names, written=None, count=1):
        left = [count]

        def init(self, way, *args):
            real(self, way, *args)
            if way.name in names and written in (None, way.output[0]) and left[0]:
                left[0] -= 1
                self.primitives[-1].primitive = c_void_p()  # an error status when it is run

        monkeypatch.setattr(onednn_kernel.OneDnnKernel, "__init__", init)

    return break_


WRITTEN = {
    "conv2d": onednn.DST,
    "conv2d_backward_data": onednn.DIFF_SRC,
    "conv2d_backward_weights": onednn.DIFF_WEIGHTS,
    "matmul": onednn.DST,
}


@pytest.mark.parametrize("op, bulk", [*((op, True) for op in WRITTEN), ("conv2d", False)])
def test_an_algorithm_that_fails_costs_no_result_and_is_not_chosen_again(
    of_onednn, broken, monkeypatch, op, bulk, as_written
):
    net = network()
    failing = next(a for a in algorithms(compiled(network())) if a.op == op)
    broken(failing.name, written=WRITTEN[op])
    function = compiled(net, bulk=bulk)
    with pytest.warns(mg.MinigraphWarning, match=f"{op} .*NumPy computed it instead") as warned:
        result = trained(function, net)
    assert len(warned) == 1
    np.testing.assert_allclose(result, as_written, **close())
    quarantined = {
        (a.subject, c.name, " ".join(c.layouts), a.op)
        for a in algorithms(function)
        for c in a.candidates
        if c.error.startswith("failed at run time: ")
    }
    assert quarantined == {(failing.subject, failing.name, failing.layout, op)}
    gone = (failing.subject, failing.name, failing.layout)
    assert gone not in choices(function) | choices(compiled())
    assert work()[0] == 0
    forget_measurements(monkeypatch)  # as a new process does
    assert gone not in choices(compiled())
    assert work()[0] == 0


def test_an_algorithm_that_fails_in_a_step_that_python_runs_costs_no_result(
    of_onednn, broken, monkeypatch, as_written
):
    net = network()
    _, activated = (a for a in algorithms(compiled(network())) if a.op == "conv2d")
    broken(activated.name, written=onednn.DST, count=-1)
    functions = compiler.KERNELS.functions

    def routines_alone(sources, on_disk):
        routines = {walker.WALKER.name, onednn_kernel.EXECUTE.name}
        addresses = functions(sources, on_disk)
        return {name: at if name in routines else 0 for name, at in addresses.items()}

    monkeypatch.setattr(compiler.KERNELS, "functions", routines_alone)
    function = compiled(net)
    assert function.report().launches > 1
    with pytest.warns(mg.MinigraphWarning, match="NumPy computed it instead"):
        result = trained(function, net)
    np.testing.assert_allclose(result, as_written, **close())
    assert (activated.subject, activated.name, activated.layout) not in choices(function)


@pytest.mark.filterwarnings("ignore:.*NumPy computed it instead", "ignore:each algorithm of")
def test_a_function_whose_algorithms_all_fail_computes_the_same_and_settles(folder, broken):
    healthy, net = network(), network()
    want = trained(compiled(healthy), healthy, steps=8)
    names = {c.name for a in algorithms(compiled()) for c in a.candidates}
    broken(*names, count=-1)
    function = compiled(net)
    losses = trained(function, net, steps=7)[:7]
    bound = function.report().seconds["bind"]
    result = np.array([*losses, *trained(function, net, steps=1)])
    np.testing.assert_allclose(result, want, **close())
    assert function.report().seconds["bind"] == bound


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("level", [2, 3, -2, -3])
def test_a_tuned_function_trains_as_level_0_does(folder, level, as_written):
    net = network()
    np.testing.assert_allclose(trained(compiled(net, level=level), net), as_written, **close())


def images(layouts):
    """Return those that are of images: nchw, nhwc, nChw8c, ..."""
    return [layout for layout in layouts if layout.lower().startswith("n")]


FAST = {
    "nchw": lambda layouts: set(layouts) == {"nchw"},
    "nhwc": lambda layouts: set(layouts) == {"nhwc"},
    "blocks": lambda layouts: all("C" in layout for layout in layouts),
}


@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize("name", FAST)
def test_every_layout_gives_what_level_0_gives(folder, name, level, as_written):
    def faster(subject, m):
        fast = subject.startswith("reorder") or FAST[name](images(m.layouts))
        return m if m.error else structs.replace(m, seconds=1e-6 if fast else 1e-2, spread=0.0)

    edit(folder, faster)
    net = network()
    function = compiled(net, level=level)
    convolutions = [a for a in algorithms(function) if a.op.startswith("conv2d")]
    assert all(FAST[name](images(a.layout.split())) for a in convolutions)
    np.testing.assert_allclose(trained(function, net), as_written, **close())
    sick = batch()
    sick[0][2, 3, 4, 5] = np.nan
    assert np.isnan(function(*sick))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_floats_are_computed_though_there_is_nothing_to_tune(empty, dtype):
    written, net = network(dtype=dtype), network(dtype=dtype)
    data = batch(dtype=dtype)
    meaning = mg.comp_graph("reference").compile(*written[:2], updates=written.updates)
    want = trained(meaning, written, data=data)
    function = compiled(net)
    np.testing.assert_allclose(trained(function, net, data=data), want, **close(dtype))
    assert algorithms(function) == []


CROWD = """
from small_network import *
compiled(level=3)
print(mg.autotune.stats().measurements)
"""


@pytest.mark.long
def test_a_crowd_of_processes_measures_what_one_would_and_leaves_nothing(tmp_path):
    alone = int(python("-c", CROWD, MINIGRAPH_CACHE_DIR=str(tmp_path / "alone"))[0])
    folder = str(tmp_path / "crowd")
    crowd = [start("-c", CROWD, MINIGRAPH_CACHE_DIR=folder) for _ in range(3)]
    assert sum(int(wait(process)[0]) for process in crowd) == alone
    assert int(python("-c", CROWD, MINIGRAPH_CACHE_DIR=folder)[0]) == 0
