"""The tables and pages that `minigraph bench` makes of its results."""

import pytest
from bench_plans import results

from minigraph.bench.results import Results, SideResult
from minigraph.bench.tables import NOTHING, UNCLEAR, tables, terminal_lines
from minigraph.errors import GraphError

QUIET, LOUD = [1.0, 1.01, 0.99, 1.0, 1.0], [1.0, 1.4, 0.6, 1.2, 0.7]
ABC = "a * b * c"


def scaled(samples, by):
    return [by * seconds for seconds in samples]


OURS = {"level 0": scaled(QUIET, 3), "level 3": QUIET}
PEERS = {"torch": scaled(QUIET, 9), "torch, channels last": scaled(QUIET, 1.9)}


def rows(run, name):
    return tables(run)[name].rows


def test_levels_stand_beside_each_other_with_their_times():
    samples = {
        "level 0": QUIET,
        "level 1": scaled(QUIET[::-1], 0.999),
        "level 3": scaled(QUIET, 0.5),
    }
    samples["level 3, untuned"] = scaled(QUIET, 0.8)
    run = results(**{ABC: samples, "one": {"level 3": QUIET}})
    table = tables(run)["levels"]
    assert table.header == ["", *samples, "memory"]
    cells = ["1000.0 ms", f"999.0 ms ({UNCLEAR})", "500.0 ms (2.00 x)", "800.0 ms (1.25 x)"]
    assert UNCLEAR in table.explanation
    assert table.rows == [[f"{ABC}, batch 8", *cells, NOTHING]]
    assert table.markdown()[-1] == rf"| a \* b \* c, batch 8 | {' | '.join(cells)} |"


def test_the_fastest_peer_that_did_not_fail_counts():
    samples = {"level 2": QUIET, "level 3": scaled(QUIET, 0.5), "level 3, untuned": QUIET}
    samples |= {"torch": scaled(QUIET, 0.1), "torch, channels last": QUIET, "jax": LOUD}
    run = results(net=samples)
    sides = run.cases["net"].sides
    sides["torch"].error, sides["level 3"].peak = "ended with status 1: why", 3 << 20
    ours = ["level 3", "500.0 ms", "3 MiB"]
    theirs = ["torch, channels last", "1000.0 ms", "-", "2.00 x"]
    assert rows(run, "peers") == [["net, batch 8", *ours, *theirs]]
    assert tables(run)["peers"].notes == ["net, batch 8: torch failed and is left out."]
    assert "net, batch 8, torch: ended with status 1: why" in tables(run)["sides"].notes
    sides["level 0"] = SideResult(error="no", cold=2.0)
    assert rows(run, "sides")[-1] == ["", "level 0", "failed", *["-"] * 5, "2.00 s", *["-"] * 3]


def test_models_of_pytorch_stand_beside_pytorch_and_the_network_in_minigraph():
    samples = {"level 3": scaled(QUIET, 0.5), "torch": QUIET, "torch.compile": scaled(QUIET, 1.5)}
    run = results(net={**samples, "minigraph.torch": scaled(QUIET, 0.4)}, other=samples)
    run.cases["net"].sides["torch"].peak = 3 << 20
    table = tables(run)["frontend"]
    assert table.header == ["", "fastest other", "minigraph.torch", "in minigraph"]
    peer = "1000.0 ms (torch), 3 MiB"
    ours = ["400.0 ms (2.50 x), -", "500.0 ms (2.00 x), -"]
    assert table.rows == [["net, batch 8", peer, *ours]]


@pytest.mark.parametrize("slower", [1.05, 1.1])
def test_a_difference_that_other_rounds_contradict_is_unclear(slower):
    run = results(net={"level 3": LOUD, "torch": scaled(LOUD[::-1], slower)})
    assert rows(run, "peers")[0][-1] == UNCLEAR


def test_rounds_that_agree_are_clear_however_noisy_the_machine():
    run = results(net={"level 0": scaled(LOUD, 1.1), "level 3": LOUD})
    table = tables(run)["levels"]
    assert table.rows[0][2].endswith("ms (1.10 x)")
    assert UNCLEAR not in table.explanation


def test_one_turn_shows_no_difference():
    assert not SideResult([1.0]).differs(SideResult([5.0]))


def test_every_side_has_its_facts_in_a_row():
    run = results(net={"level 3": QUIET, "torch": scaled(QUIET, 2)})
    side = run.cases["net"].sides["level 3"]
    side.roofline, side.p99, side.cold, side.warm, side.peak = 0.5, 2.0, 5.0, 1.0, 1 << 30
    side.difference = 2.5e-6
    first, second = rows(run, "sides")
    assert first[:6] == ["net, batch 8", "level 3", "1000.0 ms", "1%", "2000.0 ms", "5"]
    assert first[6:] == ["8", "50%", "5.00 s", "1.00 s", "1,024 MiB", "2.5e-06"]
    assert second == ["", "torch", "2000.0 ms", "1%", "-", "5", "4", *["-"] * 5]


def test_tables_without_rows_and_columns_without_a_figure_are_not_printed():
    run = results(images=0, **{ABC: {"level 3": QUIET}})
    header = tables(run)["sides"].text(100)[-3]
    assert header.split() == ["side", "a", "step", "spread", "turns"]
    explained = tables(run)["sides"].explanation
    assert "median of its turns" in explained and "Cold" not in explained
    assert [line for line in terminal_lines(run) if line in ("Levels", "Other libraries")] == []


def test_lines_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "A network with a very long name"
    run = results(**{name: OURS | {"torch, channels last": LOUD}})
    run.cases[name].sides["jax"] = SideResult(error="why " * 40)
    lines = terminal_lines(run)
    assert max(map(len, lines)) <= 80
    assert f"{name}, batch 8" in lines


def test_a_pipe_gets_a_row_for_each_side(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", None)
    name = "A network with a name that is longer than most of the lines of a wide terminal"
    lines = terminal_lines(results(**{name: OURS}))
    assert any(line.startswith(name) and "level 0" in line for line in lines)
    assert name not in lines


def test_what_a_reader_has_to_know_stands_before_the_tables():
    run = results(net={"level 0": QUIET})
    assert not any("noisy" in line for line in terminal_lines(run))
    assert any("noisy" in line for line in terminal_lines(results(net={"level 0": LOUD})))
    run.missing = {"jax": "is not measured in bfloat16"}
    run.options = {
        "peers": (),
        "batch_size": None,
        "levels": [0, 3],
        "quick": True,
        "twice": False,
    }
    lines = terminal_lines(run)
    assert "Not compared: jax is not measured in bfloat16." in lines
    assert "peers none, levels 0 3, quick" in lines
    assert any(line.startswith("A quick run: ") for line in lines)


# ---------------------------------------------------------------- the file of results


def test_results_are_read_back_as_they_were_written(tmp_path):
    run = results(net={"level 0": QUIET, "torch": LOUD})
    run.cases["net"].sides["torch"].error = "gone"
    run.missing = {"jax": "is not installed"}
    run.write(tmp_path)
    assert Results.read(tmp_path) == run


@pytest.mark.parametrize("seconds", ["1", [0], [-1.0], [None], [float("nan")], [float("inf")]])
def test_results_with_an_odd_part_are_an_error_of_one_line(tmp_path, seconds):
    run = results(abc={"level 0": QUIET})
    run.cases["abc"].sides["level 0"].seconds = seconds
    run.write(tmp_path)
    with pytest.raises(GraphError, match="is not a result of minigraph bench: it is ") as raised:
        Results.read(tmp_path)
    assert "\n" not in str(raised.value)
