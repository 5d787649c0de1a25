"""Tuning and caches on a GPU: `pytest -m cuda`.  Skipped where there is none."""

import json

import numpy as np
import pytest
from cuda_device import losses, require, training
from heavy_nodes import convolution
from new_process import begin, python

import minigraph as mg
from minigraph import ops

pytestmark = pytest.mark.cuda
BUDGET = 30.0  # seconds: all candidates are to be measured


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A cache folder in which all of the network is measured, and the report on that."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        begin(patch, folder)
        report = training("cuda", graph_opt_level=3, budget=BUDGET).report()
    return folder, report


@pytest.fixture
def folder(tuned, monkeypatch):
    """The same, of a process that begins."""
    begin(monkeypatch, tuned[0])


def algorithms(**options):
    """Return the choices for the network; nothing is measured."""
    step = training("cuda", **{"graph_opt_level": 3, "autotune": "frozen", **options})
    assert mg.autotune.stats().measurements == 0
    return step.report().algorithms


def measured(algorithm):
    """Return the measurement of the chosen algorithm."""
    (measurement,) = (
        m
        for m in algorithm.candidates
        if m.name == algorithm.name and " ".join(m.layouts) == algorithm.layout
    )
    return measurement


def test_each_convolution_and_product_has_candidates_of_which_a_fast_one_is_chosen(tuned):
    directions = {a.op for a in tuned[1].algorithms}
    assert {"conv2d", "conv2d_backward_data", "conv2d_backward_weights", "matmul"} <= directions
    for algorithm in tuned[1].algorithms:
        assert algorithm.origin == "measured", algorithm
        timed = [m for m in algorithm.candidates if m.seconds is not None]
        assert len(timed) > 1, algorithm
        chosen = measured(algorithm)
        assert chosen.seconds == algorithm.seconds and not chosen.error
        same = [m for m in timed if m.layouts == chosen.layouts and m.precision == "float32"]
        fastest = min(m.seconds for m in same if not m.error)
        doubt = min(max(0.03, *(m.spread for m in same)), 0.5)
        assert algorithm.seconds * (1 - doubt) <= fastest, algorithm


def test_what_cudnn_offers_computes_what_it_should_or_says_in_a_line_why_not(tuned):
    every = {
        (a.subject, m.name, m.layouts): m for a in tuned[1].algorithms for m in a.candidates
    }.values()
    assert all("\n" not in m.error for m in every)
    wrong = [m for m in every if "wrong result" in m.error or "wrote" in m.error]
    assert len(wrong) <= len(every) / 20, wrong
    assert {m.precision for m in every} == {"float32"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_algorithm_for_a_product_is_right_and_as_exact_as_its_dtype(
    monkeypatch, tmp_path, dtype
):
    begin(monkeypatch, tmp_path)
    x, y = mg.input("x", (6, 64, 256), dtype), mg.input("y", (6, 256, 32), dtype)
    w, b = mg.input("w", (512, 256), dtype), mg.input("b", (512,), dtype)
    z = ops.linear(ops.reshape(x, (-1, 256)), w, b)
    cg = mg.comp_graph("cuda", {"autotune.budget": BUDGET, "graph_opt_level": 3})
    algorithms = cg.compile([x, y, w, b], [x @ y, z]).report().algorithms
    assert len(algorithms) == 2
    for algorithm in algorithms:
        assert [m for m in algorithm.candidates if not m.error], algorithm
        assert not [m for m in algorithm.candidates if m.error], algorithm


def test_images_lie_with_the_channels_last_where_that_was_measured_too(tuned):
    convolutions = [a for a in tuned[1].algorithms if a.op == "conv2d"]
    layouts = {m.layouts for a in convolutions for m in a.candidates if not m.error}
    assert {layout[0] for layout in layouts} == {"nchw", "nhwc"}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_convolutions_are_measured_with_pixels_as_channels_too(monkeypatch, tmp_path, dtype):
    begin(monkeypatch, tmp_path)
    options = {"autotune": "tune", "autotune.budget": BUDGET, "graph_opt_level": 0}
    y, _, dw = convolution(8, 3, 16, 37, 7, 2, 3, dtype)
    for node in (y, dw):
        step = mg.comp_graph("cuda", options).compile(node.inputs, node)
        (algorithm,) = step.report().algorithms
        right = {m.recipe.way for m in algorithm.candidates if not m.error}
        assert {way.split(" x ")[0] for way in right} == {"", "space to depth 2"}
        blocked = [m for m in algorithm.candidates if m.recipe.way]
        assert not [m for m in blocked if "wrong result" in m.error or "wrote" in m.error]


def test_what_is_measured_is_found_again_and_frozen(folder):
    assert {a.origin for a in algorithms()} == {"stored"}
    x, w = mg.input("x", (7, 24)), mg.Parameter(np.ones((24, 40), np.float32))
    with pytest.raises(mg.CacheError, match=r"nothing is measured for cudnn matmul of rows"):
        mg.comp_graph("cuda", {"graph_opt_level": 3, "autotune": "frozen"}).compile([x], x @ w)


def test_heuristics_stand_in_for_what_is_not_measured(monkeypatch, tmp_path):
    begin(monkeypatch, tmp_path)
    assert {a.origin for a in algorithms(autotune="cached")} == {"heuristic"}
    assert {a.origin for a in algorithms(autotune="tune", budget=0.0)} == {"heuristic"}


@pytest.mark.filterwarnings("ignore:every algorithm for .* exceeds the limit")
def test_a_limit_on_the_workspace_is_kept_and_measures_nothing(folder):
    for limit in (0, 1 << 20):
        for algorithm in algorithms(workspace_limit=limit):
            chosen, candidates = measured(algorithm), algorithm.candidates
            within = [
                m for m in candidates if m.layouts == chosen.layouts and m.seconds and not m.error
            ]
            assert chosen.workspace <= max(limit, min(m.workspace for m in within))


def test_what_is_deterministic_gives_the_same_bits_every_run(folder):
    assert all(measured(a).deterministic for a in algorithms(deterministic=True))
    options = {"graph_opt_level": 3, "autotune": "frozen", "deterministic": True}
    one, other = (losses("cuda", steps=5, **options)[0] for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_measurements_travel_in_a_file(folder, monkeypatch, tmp_path):
    path = tmp_path / "network.cache"
    training("cuda", graph_opt_level=3, autotune="frozen").save_cache(path, "cudnn")
    begin(monkeypatch, tmp_path / "elsewhere")
    cg = mg.comp_graph("cuda", {"graph_opt_level": 3, "autotune": "cached"})
    loaded = cg.load_cache(path, "cudnn")
    assert loaded.accepted > 0 and not loaded.rejected
    x = mg.input("x", (16, 128))
    w = mg.Parameter(np.ones((10, 128), np.float32))
    y = ops.linear(x, w, mg.Parameter(np.zeros(10, np.float32)))
    (algorithm,) = cg.compile([x], y).report().algorithms
    assert algorithm.origin == "loaded file"


SECOND = """
import json
import minigraph as mg
from cuda_device import losses
found, step = losses("cuda", steps=2, graph_opt_level=3, budget=%r)
stats = mg.autotune.stats().measurements, mg.jit.stats().compilations, mg.jit.stats().disk_hits
print(json.dumps([*stats, *found]))
"""


def test_a_second_process_tunes_and_compiles_nothing(tmp_path):
    first, second = (
        json.loads(python("-c", SECOND % BUDGET, MINIGRAPH_CACHE_DIR=str(tmp_path))[0])
        for _ in range(2)
    )
    assert first[0] > 0 and first[1] > 0 and first[2] == 0
    assert second[:2] == [0, 0] and second[2] > 0
    np.testing.assert_allclose(second[3:], first[3:], rtol=1e-3)


require()
