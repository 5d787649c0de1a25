"""Properties of functions: the report, the fingerprint, the number of calls."""

import re

import numpy as np
import pytest
from new_process import python
from small_functions import DEVICES

import minigraph as mg
from minigraph import ops
from minigraph.options import OPTIONS


def layer(size=3, *, op=ops.relu, bias=1.0, dtype="float32"):
    x = mg.input("x", (4, size), dtype)
    w = mg.Parameter(np.eye(size, dtype=dtype), "w")
    return [x], [op(x @ w + bias).sum()], {w: w * 2}


def test_report_counts_the_ops_that_are_executed(cg):
    report = cg.compile(*layer()).report()
    assert report.ops["matmul"] == report.ops["relu"] == report.ops["sum"] == 1
    assert [name for name, _, _ in report.steps].count("matmul") == 1
    assert report.syncs == 0


def test_report_has_the_seconds_of_each_stage(cg):
    seconds = cg.compile(*layer()).report().seconds
    assert list(seconds) == ["build", "optimize", "lower", "bind"]


def test_fingerprint_is_40_hex_digits_that_stay(cg):
    one, other = (cg.compile(*layer()) for _ in range(2))
    fingerprint = one.report().fingerprint
    assert re.fullmatch(r"[0-9a-f]{40}", fingerprint)
    one(np.ones((4, 3)))
    assert one.report().fingerprint == fingerprint == other.report().fingerprint


def test_different_functions_have_different_fingerprints(cg):
    graphs = [
        layer(),
        layer(4),
        layer(op=ops.tanh),
        layer(bias=2.0),
        layer(dtype="float64"),
        (*layer()[:2], {}),
    ]
    fingerprints = [cg.compile(*graph).report().fingerprint for graph in graphs]
    assert len(set(fingerprints)) == len(fingerprints)
    others = [mg.comp_graph(device) for device in DEVICES if device != cg.device]
    assert not {each.compile(*layer()).report().fingerprint for each in others} & {*fingerprints}
    cg.set_option("graph_opt_level", 0)
    assert cg.compile(*layer()).report().fingerprint not in fingerprints


OTHERS = {
    "graph_opt_level": 0,
    "autotune": "cached",
    "autotune.workspace_limit": 1 << 20,
    "autotune.deterministic": True,
    "autotune.budget": 1.0,
    "bulk": False,
    "seed": 7,
    "num_threads": 1,
    "distributed.timeout": 5.0,
}


@pytest.mark.parametrize("name", OTHERS)
def test_fingerprint_depends_on_the_options_whose_rows_say_so(name):
    option, default = OPTIONS[name], with_options({})
    assert (with_options({name: OTHERS[name]}) != default) == option.fingerprint


def with_options(options):
    return mg.comp_graph("reference", options).compile(*layer()).report().fingerprint


def test_fingerprint_does_not_depend_on_the_values_of_parameters_and_inputs(cg):
    inputs, outputs, updates = layer()
    before = cg.compile(inputs, outputs, updates).report().fingerprint
    next(iter(updates)).assign(np.zeros((3, 3)))
    assert cg.compile(inputs, outputs, updates).report().fingerprint == before


def test_fingerprint_is_the_same_in_another_process():
    script = "import runtime.test_fingerprint as t; print(t.fingerprint_of_layer())"
    printed, _ = python("-c", script, PYTHONHASHSEED="7")
    assert printed.strip() == fingerprint_of_layer()


def fingerprint_of_layer():
    return mg.comp_graph("cpu", {"seed": 1}).compile(*layer()).report().fingerprint
