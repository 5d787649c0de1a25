"""What a compiled function tells in words: five lines, sections, and all of it as JSON."""

import json

import numpy as np
import pytest

import minigraph as mg
from minigraph import nn, ops
from minigraph.inspect.report import SECTIONS, amount


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(ops.relu(self.first(x)) * 2)


def compiled(level=3, **options):
    x = mg.input("x", (6, 8))
    cg = mg.comp_graph("cpu", {"graph_opt_level": level, "autotune": "off", **options})
    return cg.compile([x], Net()(x))


@pytest.fixture(scope="module")
def report():
    return compiled().report()


def test_five_lines_name_layers_memory_what_to_try_and_the_sections(report):
    first, layers, memory, advice, details = str(report).splitlines()
    assert f"{len(report.steps)} steps" in first and "level 3" in first
    assert "first" in layers and "second" in layers and "profile" in layers
    assert "KiB arena" in memory and memory.endswith(", 0.8 KiB parameters")
    assert 'autotune="tune": 2 of 2 algorithms' in advice
    assert all(name in details for name in SECTIONS)
    assert repr(report) == str(report)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0.0 KiB"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_bytes_are_told_in_the_unit_that_suits_them(nbytes, text):
    assert amount(nbytes) == text


def test_after_a_profile_the_slowest_layers_come_first():
    step = compiled()
    step.profile(np.zeros((6, 8), "float32"), calls=1)
    report = step.report()
    slowest = max(report.layers, key=lambda use: use.seconds)
    assert f"slowest of {len(report.layers)}: {slowest.layer}" in str(report)
    assert report.section("layers").splitlines()[1].startswith(slowest.layer)


def test_layers_count_what_their_products_compute(report):
    uses = {use.layer: use for use in report.layers}
    assert 2 * 6 * 8 * 16 <= uses["first"].flops < 2 * 6 * 8 * 16 + 4 * 6 * 16
    assert uses["second"].bytes == 4 * (6 * 16 + 16 * 4 + 4 + 6 * 4)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_section_is_text(report, name):
    text = report.section(name)
    assert (text == "none") == (name in ("numpy", "traffic"))
    assert repr(text) == str(text)


def test_kernels_are_told_by_their_layers(report):
    assert "in test_report.py:" in report.section("kernels")
    assert [a.layer for a in report.algorithms] == ["first", "second"]
    assert "; in second" in report.section("algorithms")


def test_a_section_that_is_not_there_is_an_error_that_lists_them(report):
    with pytest.raises(mg.GraphError, match="no section 'kernel'; it has layers, steps"):
        report.section("kernel")


def test_a_report_is_a_dict_of_what_json_knows(report):
    found = json.loads(json.dumps(report.to_dict()))
    assert found["fingerprint"] == report.fingerprint
    assert found["memory"]["arena_bytes"] == report.memory.arena_bytes
    assert found["kernels"][0]["layers"] == report.kernels[0].layers
    assert found["advice"] == report.advice


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"level": 1}, "graph_opt_level=3: now it is 1"),
        ({"level": -1}, "graph_opt_level=1: now each call also runs level 0"),
        ({"bulk": False}, "bulk=True: now each kernel is a call"),
        ({"debug.check_finite": True}, "debug.check_finite=False: "),
    ],
)
def test_what_makes_calls_slow_is_said(options, advice):
    assert any(line.startswith(advice) for line in compiled(**options).report().advice)


def test_largest_results_are_named_with_their_layers():
    x = mg.input("x", (64, 8))
    net = Net()
    step = mg.comp_graph("cpu", {"graph_opt_level": 0}).compile([x], net(x).sum())
    name, nbytes = step.report().memory.largest[0]
    assert nbytes == 4 * 64 * 16 and "layer first" in name
    assert name in step.report().section("memory")


def test_functions_and_reports_are_short_in_a_console_and_a_notebook(report):
    step = compiled()
    assert repr(step) == f"<function of (x: float32[6,8]) on cpu, {len(report.steps)} steps>"
    assert step._repr_html_().startswith("<pre>function ")
    assert "&quot;layers&quot;" in report._repr_html_()
    for part in (*report.kernels, *report.algorithms):
        assert len(repr(part)) < 300
