"""Reports of compiled functions: five lines, sections, and everything as JSON."""

import copy
import json
import re

import numpy as np
import pytest
from msgspec import structs

import minigraph as mg
from minigraph import nn, ops
from minigraph.inspect.report import SECTIONS, bytes_text
from minigraph.program import Traffic


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


def test_five_lines_name_results_layers_memory_what_to_try_and_the_sections(report):
    first, layers, memory, advice, details = str(report).splitlines()
    assert first.startswith(f"second: level 3 on cpu, {len(report.steps)} kernels, compiled in ")
    assert re.fullmatch(r"  layers    [\d.]+ kFLOP: first \d+%, second \d+%, .*", layers)
    assert "KiB arena" in memory and memory.endswith(", 0.8 KiB parameters")
    assert 'autotune="tune": 2 of 2 algorithms' in advice
    assert details.endswith("all: report.section()")
    assert report.section() == ", ".join(SECTIONS)
    assert repr(report) == str(report)


def test_lines_have_at_most_80_columns_whatever_names_they_hold(report):
    long = copy.copy(report)
    long.title = "a_result_with_a_very_long_name, another_one and 1000 updates"
    long.layers = [
        structs.replace(use, name=f"{use.name}.{'block.' * 20}conv") for use in report.layers
    ]
    long.numpy = ["matmul"] * len(report.steps)
    long.traffic = [Traffic("gradients", 1 << 30, 3, 2.0, 1.0)] * 12
    lines = str(long).splitlines()
    assert len(lines) == 6 and max(map(len, lines)) <= 80
    assert "…" in lines[0] and "computation overlaps 50%" in lines[3]


def test_results_are_called_by_their_variables_their_layers_or_their_lines():
    x = mg.input("x", (2, 8))
    total = x.sum()
    w = mg.Parameter(np.zeros((), "float32"), name="w")
    cg = mg.comp_graph("reference")
    step = cg.compile([x], [Net()(x), total], {w: w - total})
    assert step.report().title == "second, total and 1 update"
    assert cg.compile([x], [x.max(), x]).report().title.startswith("test_report.py:")
    assert cg.compile([x], []).report().title == "no result"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0.0 KiB"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_bytes_are_printed_in_a_suitable_unit(nbytes, text):
    assert bytes_text(nbytes) == text


def test_after_a_profile_the_slowest_layers_come_first():
    step = compiled()
    step.profile(np.zeros((6, 8), "float32"), calls=1)
    report = step.report()
    slowest = max(report.layers, key=lambda use: use.seconds)
    assert re.search(rf"  layers    [\d.]+ ms: {slowest.name} \d+%", str(report))
    assert report.section("layers").splitlines()[1].startswith(slowest.name)


def test_layers_count_what_their_products_compute(report):
    uses = {use.name: use for use in report.layers}
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


def test_the_dict_of_a_report_converts_to_json(report):
    fields = json.loads(json.dumps(report.to_dict()))
    assert fields["fingerprint"] == report.fingerprint
    assert fields["memory"]["arena_bytes"] == report.memory.arena_bytes
    assert fields["kernels"][0]["layers"] == report.kernels[0].layers
    assert fields["advice"] == report.advice


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"level": -1}, "graph_opt_level=1: each call now also runs level 0"),
        ({"bulk": False}, "bulk=True: each kernel is now a call"),
        ({"debug.check_finite": True}, "debug.check_finite=False: "),
    ],
)
def test_what_makes_calls_slow_is_said(options, advice):
    assert any(line.startswith(advice) for line in compiled(**options).report().advice)


@pytest.mark.parametrize(("rows", "level", "gains"), [(512, 2, 1), (512, 3, 0), (6, 2, 0)])
def test_level_3_is_advised_where_fusion_saves_traffic_that_takes_time(rows, level, gains):
    x = mg.input("x", (rows, 512))
    step = mg.comp_graph("cpu", {"graph_opt_level": level}).compile([x], ops.exp(x * 2) - x)
    advice = [line for line in step.report().advice if line.startswith("graph_opt_level=3: ")]
    assert len(advice) == gains and all("(estimate)" in line for line in advice)


def test_level_3_is_not_advised_where_there_are_products_alone():
    x = mg.input("x", (512, 512))
    step = mg.comp_graph("cpu", {"graph_opt_level": 2}).compile([x], (x @ x) @ x)
    assert not any("graph_opt_level" in line for line in step.report().advice)


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
    assert step._repr_html_().startswith("<pre>second: level 3 ")
    assert "&quot;layers&quot;" in report._repr_html_()
    for part in (*report.kernels, *report.algorithms):
        assert len(repr(part)) < 300
