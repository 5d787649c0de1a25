"""cuDNN's plans have names and properties, and the first that works is taken."""

import dataclasses

import pytest

pytest.importorskip("cudnn")
pytest.importorskip("cupy")
import cudnn
from cudnn_device import ENGINES, Device, Engine, settable

from minigraph.autotune.candidate import Candidate, Workbench
from minigraph.devices.cuda import candidates, cudnn_plan
from minigraph.devices.cuda.cudnn_graph import CudnnProblem, channels_last
from minigraph.devices.cuda.cudnn_plan import CudnnPlan
from minigraph.errors import GraphError


@pytest.fixture
def device(monkeypatch):
    return settable(monkeypatch)


def test_the_name_of_a_plan_does_not_depend_on_the_order_of_its_knobs():
    for knobs in ({"B": 1, "A": 2}, {"A": 2, "B": 1}):
        assert CudnnPlan(None, 0, 7, knobs).name == "engine 7 knobs {A: 2, B: 1}"
    assert CudnnPlan(None, 0, 0, {}).name == "engine 0 knobs {}"


SQUARE = channels_last((8, 8, 1, 1))
PLAIN = CudnnProblem("fprop", (SQUARE, SQUARE), SQUARE)


def listed(problem):
    return cudnn_plan.Catalogue(None).plans(problem)


def facts(problem):
    return {plan.name: (plan.deterministic, plan.precision) for plan in listed(problem)}


def test_plans_tell_how_they_compute_and_what_is_less_than_asked_for_is_no_plan(device):
    device(*ENGINES)
    exact = {
        "engine 2 knobs {}": (False, "float32"),
        "engine 3 knobs {}": (True, "float32"),
        "engine 5 knobs {}": (True, "float32"),
        "engine 7 knobs {}": (True, "float32"),
    }
    tiles = [f"engine 1 knobs {{TILE_SIZE: {n}}}" for n in (2, 3)]
    assert facts(PLAIN) == exact
    plans = facts(dataclasses.replace(PLAIN, tf32=True))
    assert plans == {**dict.fromkeys(tiles, (True, "tf32")), **exact}
    small = channels_last((8, 8, 1, 1), "bfloat16")
    plans = facts(CudnnProblem("fprop", (small, small), small))
    assert {precision for _, precision in plans.values()} == {"bfloat16"}
    assert [*plans][:2] == tiles


def window(size, kind="fprop", **facts):
    image, weights = channels_last((8, 8, 9, 9)), channels_last((8, 8, size, size))
    inputs, output = ((image, image), weights) if kind == "wgrad" else ((image, weights), image)
    return CudnnProblem(kind, inputs, output, padding=(size // 2, size // 2), **facts)


def engines(*numbers, note=None, mode="A"):
    return [Engine(n, (note,) * (note is not None), mode=mode) for n in numbers]


FALLBACK = [*engines(1, 2), *engines(3, mode="FALLBACK")]
TRANSFORMS = [*engines(1), *engines(2, note="WINOGRAD"), *engines(3, note="FFT")]
SLOW = engines(10, 11, 12, 13, note="RUNTIME_COMPILATION")
ORDERS = {
    "the engine for everything beside others": (engines(0, 1, 2), PLAIN, [1, 2]),
    "the engine for everything alone": (engines(0), PLAIN, [0]),
    "gradients of weights": (FALLBACK, window(1, "wgrad"), [3, 1, 2]),
    "gradients of weights in tf32": (FALLBACK, window(1, "wgrad", tf32=True), [1, 2, 3]),
    "another direction": (FALLBACK, window(1), [1, 2, 3]),
    "an engine that loses digits unsaid": (engines(17, 1), window(5, "wgrad"), [1]),
    "the same, of a small window": (engines(17, 1), window(3, "wgrad"), [17, 1]),
    "transforms of windows": (TRANSFORMS, window(3), [2, 3, 1]),
    "transforms of pixels": (TRANSFORMS, PLAIN, [1, 2, 3]),
    "transforms beside tf32": (TRANSFORMS, window(3, tf32=True), [1, 2, 3]),
    "many": ([*SLOW, *engines(20, 21, 22, 23)], PLAIN, [10, 11, 20, 21, 22, 23]),
    "enough": ([*FALLBACK, *engines(4, mode="B")], PLAIN, [1, 2, 3]),
    "few": ([*FALLBACK[::2], *engines(4, mode="B")], PLAIN, [1, 4, 3]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_fast_plans_are_listed_first_and_slow_or_coarse_ones_where_there_are_no_others(
    device, name
):
    """The slower model is asked where there are few; of many, compiled ones go before others."""
    actual, problem, expected = ORDERS[name]
    device(*actual)
    assert [plan.engine for plan in listed(problem)] == expected


def test_a_problem_that_cudnn_turns_down_has_no_plans(device, monkeypatch):
    def refuse(self):
        raise cudnn.cudnnGraphNotSupportedError("no")

    monkeypatch.setattr(Device, "validate", refuse)
    device(*ENGINES)
    assert facts(PLAIN) == {}


def test_a_problem_is_listed_once_and_the_notes_of_an_engine_are_asked_for_once(
    device, monkeypatch
):
    device(Engine(1), Engine(2), Engine(3))
    graphs = []
    fake = cudnn_plan.build
    monkeypatch.setattr(cudnn_plan, "build", lambda *args: graphs.append(args) or fake(*args))
    catalogue = cudnn_plan.Catalogue(None)
    catalogue.plans(PLAIN)
    first = len(graphs)
    assert catalogue.plans(PLAIN)[0].engine == 1
    assert len(graphs) == first
    larger = channels_last((16, 8, 1, 1))
    catalogue.plans(CudnnProblem("fprop", (larger, SQUARE), larger))
    assert len(graphs) == first + 1
    catalogue.plans(dataclasses.replace(PLAIN, relu=True))
    assert len(graphs) == 2 * first + 1


def test_what_an_engine_does_not_support_says_nothing_of_its_notes(device, monkeypatch):
    device(Engine(1), Engine(2), Engine(3))
    check = Device.check_support

    def refuse_the_first(self):
        if self.listed[0].number == 1 and self.problem == PLAIN:
            raise cudnn.cudnnGraphNotSupportedError("not for this size")
        check(self)

    monkeypatch.setattr(Device, "check_support", refuse_the_first)
    catalogue = cudnn_plan.Catalogue(None)
    assert [plan.engine for plan in catalogue.plans(PLAIN)] == [2, 3]
    larger = channels_last((16, 8, 1, 1))
    plans = catalogue.plans(CudnnProblem("fprop", (larger, SQUARE), larger))
    assert [(plan.engine, plan.deterministic) for plan in plans] == [
        (1, True),
        (2, True),
        (3, True),
    ]


def test_a_plan_is_had_again_by_its_engine_and_knobs_unless_it_computes_in_less(device):
    device(*ENGINES)
    tiles = 1, {"TILE_SIZE": 3}
    plan = cudnn_plan.replay(dataclasses.replace(PLAIN, tf32=True), None, *tiles)
    assert plan.name == "engine 1 knobs {TILE_SIZE: 3}"
    plan.build()
    assert (plan.index, plan.graph.built) == (0, [1])
    for missing in (tiles, (9, {}), (5, {}), (1, {"ODD": 1})):
        with pytest.raises(GraphError, match=r"^cuDNN has no engine .*$"):
            cudnn_plan.replay(PLAIN, None, *missing).build()


def test_a_plan_that_lacked_memory_is_built_once_more_and_another_is_not():
    class Bench(Workbench):
        def reraise_device_error(self, error, name):
            if "ALLOC_FAILED" in str(error):
                raise MemoryError

    problems = candidates.CudaProblems(None, Bench(), None)
    attempts = []

    def kernel_after(error):
        def make():
            attempts.append(error)
            if len(attempts) == 1:
                raise GraphError(error)
            return "a kernel"

        attempts.clear()
        return problems._make(Candidate("engine 1", (), make))

    assert kernel_after("CUDNN_STATUS_ALLOC_FAILED") == "a kernel" and len(attempts) == 2
    with pytest.raises(GraphError, match=r"^NOT_SUPPORTED$"):
        kernel_after("NOT_SUPPORTED")
