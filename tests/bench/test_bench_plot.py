"""The plot of `minigraph bench`: what a reader finds in it."""

import html
import re
from pathlib import Path

import pytest
from bench_plans import results

from minigraph.bench.command import render
from minigraph.bench.results import PLOT, Results

PLOTS = sorted((Path(__file__).parents[2] / "benchmarks" / "results").rglob("*.svg"))


def texts(path):
    """Return the texts of a plot; words of a text in several lines are apart."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", path.read_text(), re.S)
    return [html.unescape(re.sub(r"<[^>]*>|\\s+", " ", text)).strip() for text in found]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("plots")
    samples = {"level 0": [2.0] * 3, "level 3": [1.0] * 3, "torch, channels last": [1.6] * 3}
    made = results(AlexNet=samples, ResNet=samples)
    made.machine, made.date = {"processor": "A Processor", "cpus": 2}, "2026-11-22"
    made.write(folder)
    render(made, folder)
    return folder / PLOT


def test_the_plot_says_what_it_shows_and_of_which_machine(drawn):
    found = texts(drawn)
    assert "A Processor, 2 processors, 2026-11-22" in found
    assert any(text.startswith("Speed of ") for text in found)
    assert any(text.startswith("AlexNet, batch 8") for text in found)
    box = re.search(r'viewBox="0 0 (\S+) (\S+)"', drawn.read_text())
    assert float(box[1]) > 1.2 * float(box[2])


def test_bars_have_values_and_ours_another_colour_than_those_of_peers(drawn):
    found = texts(drawn)
    assert all(found.count(value) >= 2 for value in ("1.00", "2.00", "1.25"))
    assert found.count("torch, channels last") == 2
    assert {"minigraph", "other libraries"} <= {*found}
    bars = re.findall("fill: (#[0-9a-f]{6})", drawn.read_text())
    assert bars.count("#4c8fd0") == 5 and bars.count("#e08a3c") == 3  # one each in the legend


@pytest.mark.parametrize("place", PLOTS, ids=lambda path: path.parent.name)
def test_the_plots_that_are_kept_show_the_figures_that_are_kept(place):
    assert place.stat().st_size < 100_000
    found, kept = texts(place), Results.read(place.parent)
    for case in kept.cases.values():
        first, *others = case.measured.values()
        assert case.title in found
        assert {f"{first.median / side.median:.2f}" for side in others} <= {*found}
