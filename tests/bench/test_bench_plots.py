"""The plots of `minigraph bench`: what a reader finds in them."""

import html
import re
from pathlib import Path

import pytest

from minigraph.bench.results import CaseResult, ProbeResult, Results, SideResult

ROOT = Path(__file__).parents[2]
KERNEL = "conv2d_backward_weights: onednn jit_1x1:avx512_core and more that no plot may cut off"


def texts(path):
    """Return the texts of a plot; words of a text in several lines are apart."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(), re.S)
    return [html.unescape(re.sub(r"<[^>]*>|\\s+", " ", text)).strip() for text in found]


def case(title, images):
    sides = {
        "level 0": SideResult([2.0] * 3),
        "level 3": SideResult([1.0] * 3, kernels={KERNEL: 0.75, "fused: c": 0.125}),
        "torch, channels last": SideResult([1.6] * 3),
    }
    machine = {"copy": ProbeResult(1 << 33, 0, [1.0]), "product": ProbeResult(0, 10**11, [1.0])}
    return CaseResult(title, images, 10**9, 10**11, {}, sides, machine)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    plot = pytest.importorskip("minigraph.bench.plot")
    folder = tmp_path_factory.mktemp("plots")
    results = Results("2026-11-22", {"processor": "A Processor", "cpus": 2}, {}, {})
    results.cases = {"a": case("AlexNet, batch 32", 32), "b": case("a * b * c", 0)}
    plot.draw(results, folder)
    return folder


PLOTS = ("levels", "roofline", "kernels")


@pytest.mark.parametrize("name", PLOTS)
def test_each_plot_says_what_it_shows_and_of_which_machine(drawn, name):
    found = texts(drawn / f"{name}.svg")
    assert "A Processor, 2 processors, 2026-11-22" in found
    assert any(re.match("(Speed|Time) of ", text) for text in found)
    assert any(text.startswith("AlexNet, batch 32") for text in found)


@pytest.mark.parametrize("name", PLOTS)
def test_each_plot_is_wider_than_tall(drawn, name):
    box = re.search(r'viewBox="0 0 (\S+) (\S+)"', (drawn / f"{name}.svg").read_text())
    assert float(box[1]) > 1.2 * float(box[2])


def test_bars_have_values_and_ours_another_colour_than_those_of_peers(drawn):
    found = texts(drawn / "levels.svg")
    assert all(found.count(value) >= 2 for value in ("1.00", "2.00", "1.25"))
    assert found.count("torch, channels last") == 2
    assert {"minigraph", "other libraries"} <= {*found}
    bars = re.findall("fill: (#[0-9a-f]{6})", (drawn / "levels.svg").read_text())
    assert bars.count("#4c8fd0") == 5 and bars.count("#e08a3c") == 3  # one each in the legend


def test_roofs_are_named_with_their_speeds(drawn):
    found = texts(drawn / "roofline.svg")
    assert {"memory: 8.6 GB/s", "arithmetic: 100 GFLOP/s"} <= {*found}
    assert "AlexNet, batch 32: 100 GFLOP/s" in found


def test_names_of_kernels_are_whole(drawn):
    found = " ".join(texts(drawn / "kernels.svg"))
    assert KERNEL in found and "750" in found and "125" in found


def test_the_plot_in_the_readme_shows_the_figures_that_are_kept():
    (place,) = re.findall(r"!\[[^]]*\]\((benchmarks/\S+\.svg)\)", (ROOT / "README.md").read_text())
    assert (ROOT / place).stat().st_size < 100_000
    found, kept = texts(ROOT / place), Results.read((ROOT / place).parent)
    for case in kept.cases.values():
        first, *others = case.measured.values()
        assert case.title in found
        assert {f"{first.median / side.median:.2f}" for side in others} <= {*found}
