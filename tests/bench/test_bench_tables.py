"""The tables and pages that `minigraph bench` makes of its results."""

import pytest

from minigraph.bench.page import markdown_page, terminal_lines
from minigraph.bench.results import CaseResult, ProbeResult, Results, SideResult
from minigraph.bench.tables import SAME, runs, tables

# ---------------------------------------------------------------- the tables


def results(samples, title="a * b * c", published=None, images=0, **more):
    """Return results of one case with these samples of its sides."""
    found = Results.begin({"threads": 2})
    sides = {name: SideResult(seconds) for name, seconds in samples.items()}
    found.cases["abc"] = CaseResult(title, images, 8 << 30, 0, published or {}, sides, **more)
    return found


QUIET, LOUD = [1.0, 1.01, 0.99, 1.0, 1.0], [1.0, 1.4, 0.6, 1.2, 0.7]


def scaled(samples, by):
    return [by * seconds for seconds in samples]


def test_levels_stand_beside_the_figures_that_were_published():
    samples = {"level 0": QUIET, "level 1": scaled(QUIET, 0.999), "level 3": scaled(QUIET, 0.5)}
    table = tables(results(samples, published={"3": 1.5}))["levels"]
    assert table.rows == [["a * b * c", "1000.0 ms", SAME, "200% (150%)"]]
    assert table.markdown()[-1] == rf"| a \* b \* c | 1000.0 ms | {SAME} | 200% (150%) |"


def test_a_level_that_failed_leaves_the_others():
    found = results({"level 0": [], "level 3": QUIET})
    found.cases["abc"].sides["level 0"].error = "ended with status 1: why"
    made = tables(found)
    assert made["levels"].rows == [["a * b * c", "-"]]
    assert [row[2] for row in made["sides"].rows] == ["failed", "1000.0 ms"]
    assert made["sides"].notes == ["a * b * c, level 0: ended with status 1: why"]


def test_where_no_peers_are_asked_for_there_is_no_table_of_them():
    found = results({"level 3": QUIET})
    assert tables(found)["peers"].rows == [["a * b * c", "1000.0 ms (level 3)", "-", "-", "-"]]
    found.options["peers"] = []
    assert tables(found)["peers"].rows == []
    assert "Peers" not in "\n".join(terminal_lines(found))


def test_the_fastest_peer_counts():
    samples = {"level 2": QUIET, "level 3": scaled(QUIET, 0.5)}
    samples |= {"torch": scaled(QUIET, 3), "torch, channels last": QUIET, "jax": scaled(QUIET, 2)}
    (row,) = tables(results(samples))["peers"].rows
    assert row[1:] == ["500.0 ms (level 3)", "torch, channels last", "1000.0 ms", "2.00"]


@pytest.mark.parametrize("slower", [1.1, 1.3])
def test_a_spread_larger_than_the_difference_is_no_difference(slower):
    found = results({"level 3": LOUD, "torch": scaled(LOUD, slower)})
    assert tables(found)["peers"].rows[0][-1] == f"{SAME} ({slower:.2f})"


def test_one_turn_shows_no_difference():
    assert not SideResult([1.0]).differs(SideResult([5.0]))


def test_a_noisy_machine_is_said_to_be_noisy():
    noisy, quiet = results({"level 0": LOUD}), results({"level 0": QUIET})
    assert any("noisy" in line for line in terminal_lines(noisy))
    assert not any("noisy" in line for line in terminal_lines(quiet))


def test_the_bound_is_the_slower_of_moving_and_computing():
    machine = {
        "copy": ProbeResult(8, 0, [1.0, 0.5, 0.4]),
        "copy by NumPy": ProbeResult(8, 0, [1.0]),
        "product": ProbeResult(0, 1000, [1.0]),
    }
    found = results({"level 3": QUIET}, machine=machine)
    abc = found.cases["abc"]
    limit = abc.bound
    assert limit.of_memory and limit.bandwidth == 16
    assert limit.seconds == pytest.approx(abc.bytes / limit.bandwidth)
    abc.bytes, abc.flops = 1, 3000
    limit = abc.bound
    assert not limit.of_memory and limit.seconds == pytest.approx(3)
    assert tables(found)["bound"].rows[0][1:3] == ["300% (level 3)", "3000.0 ms"]


def test_without_the_machine_there_is_no_bound():
    found = results({"level 3": QUIET})
    assert found.cases["abc"].bound is None
    assert tables(found)["bound"].rows == [["a * b * c", *"----"]]


def test_results_are_read_back_as_they_were_written(tmp_path):
    found = results({"level 0": QUIET, "torch": LOUD}, published={"3": 1.5})
    found.cases["abc"].sides["torch"].error = "gone"
    found.cases["abc"].machine["copy"] = ProbeResult(8, 0, QUIET)
    found.missing = {"jax": "is not installed"}
    found.write(tmp_path)
    assert Results.read(tmp_path) == found
    assert markdown_page(Results.read(tmp_path), ["levels.svg"]) == markdown_page(
        found, ["levels.svg"]
    )


def test_a_library_that_is_not_compared_with_is_named():
    found = results({"level 0": QUIET})
    found.missing = {"jax": "is not measured in bfloat16"}
    assert "jax is not measured in bfloat16, so it is not compared with." in terminal_lines(found)


def test_nothing_measured_is_a_page_too():
    assert "minigraph bench" in markdown_page(Results.begin({}), [])
    assert isinstance(Results.begin({}), Results)


# ---------------------------------------------------------------- tuning and losses


def test_what_is_untuned_is_no_level_and_no_peer():
    samples = {"level 3": QUIET, "level 3, untuned": scaled(QUIET, 0.5), "jax": scaled(QUIET, 2)}
    case = results(samples).cases["abc"]
    assert list(case.levels()) == [3] and case.levels()[3].seconds == QUIET
    assert case.best_peer[0] == "jax"


def test_what_tuning_gives_stands_beside_what_there_is_without():
    samples = {"level 2": QUIET, "level 3": QUIET, "torch": QUIET}
    assert tables(results(samples))["tuning"].rows == []
    samples |= {"level 2, untuned": scaled(QUIET, 1.5), "level 3, untuned": scaled(QUIET, 1.001)}
    assert tables(results(samples))["tuning"].rows == [
        ["a * b * c", "level 2", "1500.0 ms", "1000.0 ms", "1.50"],
        ["", "level 3", "1001.0 ms", "1000.0 ms", SAME],
    ]
    del samples["level 2"]
    assert tables(results(samples))["tuning"].rows[0][-2:] == ["-", "-"]


def test_losses_stand_beside_those_of_pytorch():
    other = "torch, channels last"
    found = results({"level 0": QUIET, "level 3": QUIET, "torch": QUIET, other: QUIET})
    assert tables(found)["losses"].rows == []
    sides = found.cases["abc"].sides
    sides["level 3"].losses, sides["torch"].losses = [2.0, 1.5, 1.0], [2.0, 1.2, 1.0]
    table = tables(found)["losses"]
    row = ["a * b * c", "level 3", "2.0000", "1.0000", "2.0000", "1.0000", "2.5e-01"]
    assert table.rows == [[*row, "-"]]
    sides[other].losses = [2.0, 1.2, 1.5]
    assert tables(found)["losses"].rows == [[*row, "5.0e-01"]]
    assert "in float32" in table.about
    found.options["precision"] = "tf32"
    assert "in tf32" in tables(found)["losses"].about


def test_losses_that_are_not_there_are_explained():
    found = results({"level 3": QUIET, "torch": QUIET})
    sides = found.cases["abc"].sides
    sides["level 3"].losses, sides["torch"].lost = [2.0, 1.0], "was killed"
    table = tables(found)["losses"]
    assert table.rows == [["a * b * c", "level 3", "2.0000", "1.0000", *"----"]]
    assert table.notes == ["a * b * c, torch: was killed"]


# ---------------------------------------------------------------- several runs


def trained(speed, peer=QUIET, **ours):
    """Return a run of a network, this many times as fast as PyTorch, with facts of our side."""
    samples = {"level 0": QUIET, "level 3": scaled(peer, 1 / speed)}
    samples |= {"torch": scaled(peer, 2), "torch, channels last": peer}
    samples |= {"torch.compile": scaled(peer, 3), "torch.compile, channels last": scaled(peer, 4)}
    found = results(samples, title="AlexNet", images=32)
    sides = found.cases["abc"].sides
    for name, value in ours.items():
        setattr(sides["level 3"], name, value)
    sides["torch"].peak, sides["torch, channels last"].peak = 400, 200
    sides["torch.compile"].cold, sides["torch.compile, channels last"].cold = 20.0, 10.0
    return found


def test_of_several_runs_the_median_counts_and_each_is_shown():
    several = [
        trained(2, cold=5.0, warm=1.0, peak=100),
        trained(4, cold=6.0, warm=3.0, peak=150),
        trained(1.05, peer=LOUD, cold=2.0, warm=2.0, peak=120),
    ]
    for run, seconds in zip(several, (0.25, 0.5, 0.13), strict=True):
        run.cases["abc"].machine = {
            "copy": ProbeResult(8 << 30, 0, [seconds]),
            "product": ProbeResult(0, 1, [1.0]),
        }
    ((title, *cells),) = runs(several).rows
    assert title == "AlexNet"
    assert cells == [
        "2.00 (2.00, 4.00, ~1.05)",
        "50% (50%, 200%, 14%)",
        "0.50 (0.50, 0.60, 0.20)",
        "2.00 (1.00, 3.00, 2.00)",
        "0.60 (0.50, 0.75, 0.60)",
    ]


def test_one_run_needs_no_brackets():
    ((_, *cells),) = runs([trained(2, cold=5.0, warm=1.0, peak=100)]).rows
    assert cells == ["2.00", "-", "0.50", "1.00", "0.50"]


def test_a_run_that_lacks_a_figure_leaves_the_others():
    lost = results({"level 3": [], "torch": QUIET}, title="AlexNet")
    other = results({"level 3": QUIET}, title="ResNet")
    other.cases["resnet"] = other.cases.pop("abc")
    table = runs([trained(2), lost, other])
    assert [row[:2] for row in table.rows] == [["AlexNet", "2.00 (2.00, -, -)"], ["ResNet", "-"]]


def test_an_expression_is_compared_in_speed_alone():
    found = results({"level 3": QUIET, "torch": scaled(QUIET, 2), "torch.compile": QUIET})
    for side in found.cases["abc"].sides.values():
        side.cold = side.warm = side.peak = 1
    assert runs([found]).rows == [["a * b * c", "~1.00", "-"]]
