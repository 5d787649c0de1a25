"""The tables and pages that `minigraph bench` makes of its results."""

import functools
import json

import pytest
from comparisons.runs import processors, runs, targets

from minigraph.bench.page import markdown_page, terminal_lines
from minigraph.bench.results import CaseResult, ProbeResult, Results, SideResult
from minigraph.bench.tables import SAME, conclusion, tables
from minigraph.errors import GraphError

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


def test_brackets_are_explained_where_there_are_some():
    samples = {"level 0": QUIET, "level 3": scaled(QUIET, 0.5)}
    assert "In brackets" not in tables(results(samples))["levels"].about
    assert "In brackets" in tables(results(samples, published={"3": 1.5}))["levels"].about


def test_a_level_that_failed_leaves_the_others():
    found = results({"level 0": [], "level 3": QUIET})
    found.cases["abc"].sides["level 0"].error = "ended with status 1: why"
    made = tables(found)
    assert made["levels"].rows == []
    assert [row[2] for row in made["sides"].rows] == ["failed", "1000.0 ms"]
    assert made["sides"].notes == ["a * b * c, level 0: ended with status 1: why"]


def test_where_no_peer_was_measured_there_is_no_table_of_them():
    found = results({"level 3": QUIET})
    assert tables(found)["peers"].rows == []
    assert "Peers" not in "\n".join(terminal_lines(found))


def test_the_fastest_peer_counts():
    samples = {"level 2": QUIET, "level 3": scaled(QUIET, 0.5)}
    samples |= {"torch": scaled(QUIET, 3), "torch, channels last": QUIET, "jax": scaled(QUIET, 2)}
    (row,) = tables(results(samples))["peers"].rows
    assert row[1:] == ["500.0 ms (level 3)", "torch, channels last", "1000.0 ms", "2.00"]


def titled(**cases):
    """Return results of cases with these titles' samples."""
    found = Results.begin({})
    for title, samples in cases.items():
        sides = {name: SideResult(seconds) for name, seconds in samples.items()}
        found.cases[title] = CaseResult(f"{title}, batch 8", 8, 1, 1, {}, sides)
    return found


def test_one_sentence_at_the_end_says_how_fast_the_highest_level_is():
    sides = {"level 0": scaled(QUIET, 3), "level 3": QUIET}
    peers = {"torch": scaled(QUIET, 9), "torch, channels last": scaled(QUIET, 1.9)}
    last = "Level 3 is 1.9 times as fast as PyTorch's best on AlexNet."
    found = titled(AlexNet=sides | peers)
    assert conclusion(found) == terminal_lines(found)[-1] == last
    assert last in markdown_page(found, [])
    found = titled(AlexNet=sides | peers, MLP=sides | {"jax": scaled(QUIET, 0.5)}, A=sides)
    words = "Level 3 is 1.9 times as fast as the best of PyTorch and JAX on AlexNet"
    assert conclusion(found) == f"{words} and 0.50 times on MLP."
    found = titled(AlexNet=sides | peers, B=sides | {"torch": QUIET}, C=sides | {"torch": LOUD})
    words = "Level 3 is 1.9 times as fast as PyTorch's best on AlexNet"
    assert conclusion(found) == f"{words}; on B and C there is no clear difference."
    found = titled(B=sides | {"torch": QUIET})
    words = "There is no clear difference between level 3 and PyTorch's best"
    assert conclusion(found) == f"{words} on B."


def test_the_last_sentence_about_a_noisy_machine_says_so():
    found = titled(AlexNet={"level 3": LOUD, "torch": scaled(LOUD, 9)})
    words = "On this noisy machine level 3 is 9.0 times as fast as PyTorch's best on AlexNet."
    assert conclusion(found) == words


def test_without_peers_the_last_sentence_compares_with_level_0():
    found = titled(AlexNet={"level 0": scaled(QUIET, 3), "level 2": QUIET})
    assert conclusion(found) == "Level 2 is 3.0 times as fast as level 0 on AlexNet."
    assert conclusion(titled(AlexNet={"level 3": QUIET})) == ""
    assert conclusion(Results.begin({})) == ""


def test_columns_without_a_figure_are_not_printed():
    found = results({"level 3": QUIET})
    header = tables(found)["sides"].text(100)[-3]
    assert header.split() == ["side", "a", "step", "spread", "turns"]
    assert [line for line in terminal_lines(found) if line in ("Levels", "Peers", "Bounds")] == []


def test_lines_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    sides = {"level 0": scaled(QUIET, 3), "level 3": QUIET, "torch, channels last": LOUD}
    found = titled(**{"A network with a very long name": sides})
    found.cases["A network with a very long name"].sides["jax"] = SideResult(error="why " * 40)
    lines = terminal_lines(found)
    assert max(map(len, lines)) <= 80
    assert "A network with a very long name, batch 8" in lines


def test_a_pipe_gets_a_row_for_each_side(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    sides = {"level 0": scaled(QUIET, 3), "level 3": QUIET, "torch, channels last": LOUD}
    name = "A network with a name that is longer than most of the lines of a wide terminal"
    lines = terminal_lines(titled(**{name: sides}))
    assert any(line.startswith(name) and "level 0" in line for line in lines)
    assert name not in lines


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
    assert tables(found)["bound"].rows == []


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


ODD = {
    "date": [None, 3],
    "cases": [None, [], {"abc": 3}, {"abc": {}}],
    "cases.abc.images": [-1, "2", 1.5],
    "cases.abc.sides": [[], {"level 0": []}, {"level 0": {"more": 1}}],
    "cases.abc.sides.level 0.seconds": ["1", [0], [-1.0], [None], [float("nan")], [float("inf")]],
    "cases.abc.sides.level 0.peak": ["1", -1, 0.5],
    "interrupted": [None, 1],
    "more": [1],
}


@pytest.mark.parametrize(("where", "value"), [(where, v) for where in ODD for v in ODD[where]])
def test_results_with_an_odd_part_are_an_error_of_one_line(tmp_path, where, value):
    results({"level 0": QUIET}).write(tmp_path)
    path = tmp_path / "results.json"
    whole = json.loads(path.read_text())
    *parts, last = where.split(".")
    functools.reduce(dict.__getitem__, parts, whole)[last] = value
    path.write_text(json.dumps(whole))
    with pytest.raises(GraphError, match="holds no results of minigraph bench: it is ") as raised:
        Results.read(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", [b"", b"\xff", b"[" * 100_000, b'{"cases": ' * 100_000])
def test_a_file_of_anything_else_is_an_error_of_one_line(tmp_path, text):
    (tmp_path / "results.json").write_bytes(text)
    with pytest.raises(GraphError, match="holds no results of minigraph bench: it is "):
        Results.read(tmp_path)


def test_a_library_that_is_not_compared_with_is_named():
    found = results({"level 0": QUIET})
    found.missing = {"jax": "is not measured in bfloat16"}
    assert "jax is not measured in bfloat16, so it is not compared with." in terminal_lines(found)


def test_nothing_measured_is_a_page_too():
    assert "minigraph bench" in markdown_page(Results.begin({}), [])
    assert isinstance(Results.begin({}), Results)


# ---------------------------------------------------------------- tuning and losses


def test_several_processes_stand_beside_one_and_beside_pytorchs():
    samples = {"level 3": QUIET, "level 3, 2 processes": scaled(QUIET, 0.8), "torch": QUIET}
    samples["torch, channels last, 2 processes"] = scaled(QUIET, 1.2)
    found = results(samples, images=8)
    ours, _, theirs = list(found.cases["abc"].sides.values())[1:]
    ours.hidden, ours.peak, theirs.hidden = 0.9, 3 << 20, 0.25
    (row,) = tables(found)["processes"].rows
    assert row == [
        *("a * b * c", "1000.0 ms (level 3)", "800.0 ms", "125%", "90%", "3 MiB"),
        *("1200.0 ms", "1.50", "25%", "-"),
    ]
    assert found.cases["abc"].best_peer[0] == "torch"
    del found.cases["abc"].sides["torch, channels last, 2 processes"]
    assert tables(found)["processes"].rows == [row[:6] + ["-"] * 4]


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


def test_a_target_is_reached_by_the_median_of_the_runs():
    several = []
    for times in (2.9, 3.1, 3.3):
        samples = {"level 3": QUIET, "torch": scaled(QUIET, times)}
        machine = {"copy": ProbeResult(8 << 30, 0, [0.9]), "product": ProbeResult(0, 1 << 30, [1])}
        several.append(results(samples, machine=machine))
    fast, near = targets(several).rows
    assert fast[1:4] == ["times as fast ≥ 3.00", "3.10 (2.90, 3.10, 3.30)", "yes"]
    assert near[1:4] == ["share of the bound ≥ 95%", "90% (90%, 90%, 90%)", "no"]
    assert near[4] == "memory: 8,589.9 MB at 9.5 GB/s"
    assert targets([titled(Other={"level 3": QUIET, "torch": QUIET})]).rows == []


def test_predictions_are_shown_frozen_and_not_beside_the_fastest_peer():
    samples = {"level 3": QUIET, "level 3, unfrozen": scaled(QUIET, 1.5)}
    samples |= {"torch": scaled(QUIET, 3), "onnxruntime": scaled(QUIET, 2)}
    found = results(samples, images=1)
    assert tables(found)["inference"].rows == []
    for i, side in enumerate(found.cases["abc"].sides.values()):
        side.apart, side.p99 = i * 1e-6, 2.0
    frozen, unfrozen, peer = tables(found)["inference"].rows
    assert frozen[1:5] == ["frozen", "1000.0 ms", "2000.0 ms", "-"] and frozen[-1] == "3e-06"
    assert unfrozen[1:5] == ["unfrozen", "1500.0 ms", "2000.0 ms", "1.50"]
    assert peer[1:5] == ["onnxruntime", "2000.0 ms", "2000.0 ms", "2.00"]


def test_processors_stand_beside_the_target_each_with_its_median():
    def ran(times, peer=QUIET):
        return results({"level 3": QUIET, "torch": scaled(peer, times)})

    found = {"one": [ran(2.5), ran(3.5)], "other": [ran(1.05, LOUD)], "third": []}
    table = processors(found)
    assert table.header == ["", "target", "one", "other", "third"]
    assert table.rows == [
        ["a * b * c", "times as fast ≥ 3.00", "3.00", "~1.05", "-"],
        ["a * b * c", "share of the bound ≥ 95%", "-", "-", "-"],
    ]
