"""Functions that are kept by size, and the memory that they share."""

import re

import numpy as np
import pytest
from at_once import in_threads
from needs import needs_kernels
from sized import real

import minigraph as mg
from minigraph import nn, ops


def test_the_functions_of_the_latest_sizes_are_kept():
    x = mg.input("x", (None, 3))
    step = mg.comp_graph(options={"sizes.kept": 2}).compile([x], x * 2)
    for n in (1, 2, 1, 3):
        step(np.ones((n, 3)))
    kept = [next(s for _, _, s in report.steps) for report in step.reports()]
    assert [re.search(r"\[(\d)", text)[1] for text in kept] == ["1", "3"]
    assert step.report().steps == step.reports()[-1].steps


def test_sizes_in_turn_are_compiled_once_each():
    x = mg.input("x", (None, 3))
    step = mg.comp_graph("reference").compile([x], x * 2)
    for n in [*range(1, 21)] * 2:
        step(np.ones((n, 3)))
    assert len(step.reports()) == 20


def test_kept_functions_stay_within_the_memory_limit(monkeypatch):
    x = mg.input("x", (None, 3))
    step = mg.comp_graph("reference").compile([x], x @ np.ones((3, 1000)))
    step(np.ones((1, 3)))
    owners = next(iter(step._by_size.values())).compilation.bytes_by_owner
    assert sum(owners.values()) > 24_000
    monkeypatch.setattr("minigraph.runtime.any_size.MEMORY_LIMIT", sum(owners.values()) * 1.7)
    for n in (2, 3, 4, 5):  # which share the constant
        step(np.ones((n, 3)))
    assert len(step.reports()) == 2


def test_a_size_that_is_compiled_for_the_second_time_gives_one_warning():
    x = mg.input("x", ("rows", 3))
    step = mg.comp_graph("reference", {"sizes.kept": 2}).compile([x], x * 2)
    for n in (11, 12, 13):
        step(np.ones((n, 3)))
    with pytest.warns(mg.MinigraphWarning, match="second time for the size rows 11") as told:
        step(np.ones((11, 3)))
        step(np.ones((12, 3)))
    assert len(told) == 1
    assert told[0].filename == __file__


def test_a_function_of_fixed_size_has_one_report():
    x = mg.input("x", (2, 3))
    step = mg.comp_graph().compile([x], x * 2)
    assert [report.fingerprint for report in step.reports()] == [step.report().fingerprint]


def test_smaller_sizes_share_the_memory_of_the_largest():
    x = mg.input("x", (None, 1000))
    step = mg.comp_graph(options={"graph_opt_level": 0}).compile([x], ops.exp(x * 2) + x)
    for n in (64, 8, 32):
        step(np.ones((n, 1000)))
    kept = [each.compilation.executor.arena for each in step._by_size.values()]
    assert all(arena is kept[0] for arena in kept)


@needs_kernels
def test_other_sizes_take_what_is_expected_of_them_until_they_are_measured():
    x = mg.input("x", (None, 3, 16, 16))
    net = nn.Conv2d(3, 8, 3, padding=1)
    gradients = mg.grad(ops.square(net(x)).sum(), [x, net.weight])
    options = {"graph_opt_level": 2, "autotune": "exhaustive"}
    step = mg.comp_graph(options=options).compile([x], gradients)
    step(real(8, 3, 16, 16))
    step(real(5, 3, 16, 16))

    def origins():
        return {algorithm.origin for algorithm in step.report().algorithms}

    assert origins() == {"predicted"}
    next(reversed(step._by_size.values())).seconds = 1e6  # as after many calls
    step(real(5, 3, 16, 16))
    assert "measured" in origins()


@needs_kernels
def test_caches_hold_the_entries_of_all_sizes(tmp_path):
    x = mg.input("x", (None, 3, 16, 16))
    net = nn.Conv2d(3, 8, 3, padding=1)
    step = mg.comp_graph(options={"graph_opt_level": 3}).compile([x], ops.relu(net(x)) * 2)
    step(real(2, 3, 16, 16))
    step(real(4, 3, 16, 16))
    step.save_cache(tmp_path / "all.cache")
    loaded = mg.comp_graph(options={"graph_opt_level": 3}).load_cache(tmp_path / "all.cache")
    assert loaded.accepted >= 2
    folder = tmp_path / "folder"
    folder.mkdir()
    again = mg.comp_graph().compile([x], net(x), cache_dir=folder)
    again(real(2, 3, 16, 16))
    again(real(4, 3, 16, 16))
    assert len(list(folder.glob("*.cache"))) == 2


def test_threads_may_call_it_with_different_sizes():
    x = mg.input("x", (None, 3))
    total = mg.Parameter(np.zeros((), np.float32), "total")
    step = mg.comp_graph().compile([x], x * 2, {total: total + x.sum()})
    sizes = [1, 2, 3, 4]

    def work(n):
        for _ in range(50):
            np.testing.assert_array_equal(step(np.ones((n, 3))), np.full((n, 3), 2))

    in_threads(*(lambda n=n: work(n) for n in sizes))
    assert total.numpy() == 50 * 3 * sum(sizes)
    assert step.calls == 200


def test_threads_may_call_it_with_different_sizes_where_it_changes_nothing():
    x = mg.input("x", (None, 256))
    y = x
    for _ in range(4):
        y = ops.tanh(y @ np.eye(256, dtype=np.float32))
    function = mg.comp_graph(options={"graph_opt_level": 1}).compile([x], y)
    arrays = {n: real(n, 256) for n in (60, 61, 62)}
    expected = {n: function(array) for n, array in arrays.items()}

    def work(n):
        for _ in range(30):
            np.testing.assert_array_equal(function(arrays[n]), expected[n])

    in_threads(*(lambda n=n: work(n) for n in arrays))
    assert function.calls == 3 + 3 * 30


def test_values_need_not_be_arrays():
    x = mg.input("x", (None,))
    step = mg.comp_graph().compile([x], x * 2)
    np.testing.assert_array_equal(step([1, 2, 3]), [2, 4, 6])
    np.testing.assert_array_equal(step(x=[1.0]), [2])
