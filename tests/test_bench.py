"""`minigraph bench`: what it measures, what it survives, and what its tables say."""

import importlib.util
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import minigraph as mg
from minigraph import cli, nn
from minigraph.bench import command, documents, measure, networks, ours
from minigraph.bench.bound import ARITHMETIC, COPIES, bound
from minigraph.bench.cases import NAMES, NETWORKS, case
from minigraph.bench.page import page, terminal
from minigraph.bench.results import CaseResult, Results, SideResult, begin, differ, read
from minigraph.bench.table import SAME, tables

ROOT = Path(__file__).parent.parent


# ---------------------------------------------------------------- from the command line


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of a run of the command on its smallest case."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    arguments = "--quick --models mlp --levels 0,3 --peers none --repeats 3 --batch-size 4"
    assert cli.main(["bench", *arguments.split(), "--out", str(folder)]) == 0
    return folder


def test_a_run_keeps_every_sample_of_every_side(out):
    found = read(out)
    assert list(found.cases) == ["mlp"]
    mlp = found.cases["mlp"]
    assert list(mlp.sides) == ["level 0", "level 3"]
    for side in mlp.sides.values():
        assert len(side.seconds) == 3 and min(side.seconds) > 0
        assert not side.error and side.cold > 0 and side.warm is None
        assert side.kernels
        if sys.platform == "linux":
            assert side.peak > 1 << 20
    assert set(mlp.machine) == {*COPIES, *ARITHMETIC}
    assert found.versions["minigraph"] == mg.__version__
    assert found.options["quick"] and found.options["levels"] == [0, 3]


def test_the_pages_made_again_from_the_results_are_the_same(out, capsys):
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert cli.main(["bench", "--render", str(out)]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    plots = set(before) - {"results.json", "README.md"}
    assert bool(plots) == bool(importlib.util.find_spec("matplotlib"))
    assert all(f"({name})" in before["README.md"].decode() for name in plots)


@pytest.mark.parametrize(
    "arguments",
    ["--models nonsense", "--levels 4", "--peers tensorflow", "--repeats 0", "--threads two"],
)
def test_arguments_that_do_not_fit_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *arguments.split()])
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert said.count("\n") == 1 and arguments.split()[1] in said


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert cli.main(["bench", "--render", str(tmp_path)]) == 1
    assert "minigraph bench --out" in capsys.readouterr().err
    (tmp_path / "results.json").write_text('{"cases": {"abc": 3}}')
    assert cli.main(["bench", "--render", str(tmp_path)]) == 1
    assert "holds no results" in capsys.readouterr().err


def planned(*arguments):
    return command.planned(cli._parser().parse_args(["bench", *arguments]))


def test_all_is_measured_unless_less_is_asked_for(monkeypatch):
    monkeypatch.delenv("MINIGRAPH_NUM_THREADS", raising=False)
    plan = planned("--device", "cpu")
    assert plan.models == NAMES and plan.levels == (0, 1, 2, 3)
    assert plan.peers == ("torch", "torch.compile", "jax")
    less = planned("--quick", "--models", "abc,mlp", "--peers", "jax", "--threads", "1")
    assert (less.models, less.peers, less.threads) == (("abc", "mlp"), ("jax",), 1)
    assert less.budget < plan.budget and less.repeats < plan.repeats


# ---------------------------------------------------------------- the sides

SCRIPT = """
import json, os, sys
def say(what):
    print(json.dumps(what), flush=True)
say({"first": 0.5})
times = iter(json.loads(sys.argv[1]))
for line in sys.stdin:
    if line == "end\\n":
        say({"peak": 1 << 30})
        break
    took = next(times, 0.25)
    if took == "exit":
        sys.exit("no more of it")
    elif took == "kill":
        os.kill(os.getpid(), 9)
    elif took == "error":
        say({"error": "MemoryError: too much"})
    else:
        say({"step": took})
"""


def scripted(*times):
    """The command of a worker that says it took these times, then a quarter of a second."""
    return [sys.executable, "-S", "-c", SCRIPT, json.dumps(times)]


@pytest.fixture
def run(monkeypatch):
    """A function that runs a benchmark whose workers are scripted."""

    def run(commands, progress=lambda what, seconds: None, models=("abc",)):
        plan = planned("--quick", "--device", "cpu", "--models", ",".join(models))
        monkeypatch.setattr(measure, "sides", lambda plan, model, missing: commands)
        return measure.run(plan, {}, progress)

    return run


def test_times_count_once_they_have_settled(run):
    side = run({"level 0": scripted(9.0, 0.25)}).cases["abc"].sides["level 0"]
    assert side == SideResult([0.25] * 5, warmup=2, cold=0.5, peak=1 << 30)


@pytest.mark.parametrize(
    ("end", "words"),
    [("exit", "no more of it"), ("kill", "out of memory"), ("error", "MemoryError: too much")],
)
def test_a_worker_that_fails_is_a_line_and_not_the_end(run, end, words):
    found = run({"level 0": scripted(), "torch": scripted(0.25, 0.25, 0.25, end)})
    sides = found.cases["abc"].sides
    assert len(sides["level 0"].seconds) == 5 and not sides["level 0"].error
    assert len(sides["torch"].seconds) == 1 and words in sides["torch"].error
    assert any(words in line for line in terminal(found))


def test_a_worker_that_does_not_start_is_a_line_and_not_the_end(run):
    broken = [sys.executable, "-S", "-c", "import there_is_no_such_module"]
    found = run({"level 0": scripted(), "jax": broken})
    assert "there_is_no_such_module" in found.cases["abc"].sides["jax"].error
    assert found.cases["abc"].best_peer() is None
    assert any(", jax: ended with status 1" in line for line in terminal(found))


def test_a_case_that_cannot_be_run_is_said_in_the_words_of_its_error(tmp_path):
    plan = planned("--quick", "--device", "cpu")
    commands = measure.sides(plan, "mlp", [])
    commands = {"level 0": [*commands["level 0"][:-1], '{"case": "nothing"}']}
    found = CaseResult("nothing", 0, 1, 0)
    measure.measure(found, commands, plan, tmp_path / "mlp", lambda what, seconds: None)
    assert found.sides["level 0"].error.startswith("TypeError: ")


def test_ctrl_c_keeps_what_was_measured(run):
    said = []

    def progress(what, seconds):
        said.append(what)
        if said.count("a * b * c, 16M floats: torch") == 4:  # its start and two turns before it
            os.kill(os.getpid(), signal.SIGINT)

    found = run({"level 0": scripted(), "torch": scripted()}, progress, models=("abc", "mlp"))
    assert found.interrupted
    assert list(found.cases) == ["abc"]
    sides = found.cases["abc"].sides
    assert (len(sides["level 0"].seconds), len(sides["torch"].seconds)) == (1, 0)
    assert any("Interrupted" in line for line in terminal(found))


def test_peers_that_are_not_installed_are_named(run, monkeypatch):
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    assert run({"level 0": scripted()}).missing == ["torch", "jax"]
    plan = planned("--device", "cpu")
    monkeypatch.undo()
    assert list(measure.sides(plan, "abc", ["torch", "jax"])) == [
        "machine",
        *(f"level {level}" for level in (0, 1, 2, 3)),
    ]
    assert "torch, channels last" in measure.sides(plan, "mlp", [])
    assert "torch, channels last" not in measure.sides(plan, "abc", [])
    found = results({"level 0": [1.0] * 4})
    found.missing = ["jax"]
    assert "jax is not installed, so it is not compared with." in terminal(found)


# ---------------------------------------------------------------- the tables


def results(samples, title="a * b * c", published=None, **more):
    """Return results of one case with these samples of its sides."""
    found = begin({"threads": 2})
    sides = {name: SideResult(seconds) for name, seconds in samples.items()}
    found.cases["abc"] = CaseResult(title, 0, 8 << 30, 0, published or {}, sides, **more)
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
    assert not differ(SideResult([1.0]), SideResult([5.0]))


def test_a_noisy_machine_is_said_to_be_noisy():
    noisy, quiet = results({"level 0": LOUD}), results({"level 0": QUIET})
    assert any("noisy" in line for line in terminal(noisy))
    assert not any("noisy" in line for line in terminal(quiet))


def test_the_bound_is_the_slower_of_moving_and_computing():
    machine = {"copy": [1.0, 0.5, 0.4], "copy by NumPy": [1.0], "product": [1.0]}
    found = results({"level 3": QUIET}, machine=machine)
    abc = found.cases["abc"]
    limit = bound(abc)
    assert limit.of_memory and limit.bandwidth == 2 * COPIES["copy"]
    assert limit.seconds == pytest.approx(abc.bytes / limit.bandwidth)
    abc.bytes, abc.flops = 1, 3 * ARITHMETIC["product"]
    limit = bound(abc)
    assert not limit.of_memory and limit.seconds == pytest.approx(3)
    assert tables(found)["bound"].rows[0][1:3] == ["300% (level 3)", "3000.0 ms"]


def test_without_the_machine_there_is_no_bound():
    found = results({"level 3": QUIET})
    assert bound(found.cases["abc"]) is None
    assert tables(found)["bound"].rows == [["a * b * c", *"----"]]


def test_results_are_read_back_as_they_were_written(tmp_path):
    found = results({"level 0": QUIET, "torch": LOUD}, published={"3": 1.5})
    found.cases["abc"].sides["torch"].error = "gone"
    found.write(tmp_path)
    assert read(tmp_path) == found
    assert page(read(tmp_path), ["levels.svg"]) == page(found, ["levels.svg"])


def test_nothing_measured_is_a_page_too():
    assert "minigraph bench" in page(begin({}), [])
    assert isinstance(begin({}), Results)


# ---------------------------------------------------------------- the documents


@pytest.fixture
def document(tmp_path):
    """A document with the place of a table, and the results for it."""
    results({"level 0": QUIET, "level 3": scaled(QUIET, 0.5)}).write(tmp_path / "cpu")
    path = tmp_path / "README.md"
    path.write_text("before\n\n<!-- bench: cpu/levels -->\nold\n<!-- end -->\n\nafter\n")
    return path


def check(document, *flags):
    return documents.main([*flags, "--results", str(document.parent), str(document)])


def test_tables_of_a_document_come_from_the_results(document, capsys):
    assert check(document, "--check") == 1
    assert "old" in document.read_text()
    assert "out of date" in capsys.readouterr().err
    assert check(document) == 0
    text = document.read_text()
    assert text.startswith("before\n\n<!-- bench: cpu/levels -->\n| ") and "200%" in text
    assert text.endswith("|\n<!-- end -->\n\nafter\n") and "old" not in text
    assert check(document, "--check") == 0


@pytest.mark.parametrize("name", ["cpu/nothing", "gpu/levels"])
def test_a_table_that_does_not_exist_is_one_line(document, name, capsys):
    document.write_text(f"<!-- bench: {name} -->\n<!-- end -->\n")
    assert check(document, "--check") == 1
    assert capsys.readouterr().err.count("\n") == 1


# ---------------------------------------------------------------- the networks

SIZES = {"alexnet": 61_100_840, "resnet18": 11_689_512, "resnet50": 25_557_032}


@pytest.mark.parametrize("name", SIZES)
def test_the_networks_are_those_of_the_examples(name):
    folder = "alexnet" if name == "alexnet" else "resnet"
    path = ROOT / "examples" / folder / "model.py"
    spec = importlib.util.spec_from_file_location(f"example_{folder}", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    net = example.AlexNet() if name == "alexnet" else getattr(example, name)()
    layers = NETWORKS[name].layers
    made = networks.module(nn, layers, ours.Residual)
    x = mg.input("x", (2, 3, 224, 224))
    shapes = [sorted(p.shape for p in each.parameters()) for each in (net, made)]
    assert shapes[0] == shapes[1]
    assert networks.parameters(layers) == SIZES[name]
    assert made(x).shape == net(x).shape


@pytest.mark.parametrize(
    ("name", "multiplications"), [("alexnet", 714e6), ("resnet18", 1.814e9), ("resnet50", 4.089e9)]
)
def test_a_training_step_computes_three_times_what_is_published_for_an_image(name, multiplications):
    subject = case(name, batch_size=2)
    images = networks.walk(subject.layers, subject.shape)
    first = next(after for layer, _, after in images if isinstance(layer, networks.Conv))
    stem = subject.layers[0]
    unasked = stem.inputs * stem.kernel**2 * first[0] * first[1] * first[2]
    assert subject.flops == pytest.approx(2 * 2 * (3 * multiplications - unasked), rel=0.002)


@pytest.mark.parametrize("name", NAMES)
def test_data_are_numbers_and_none_of_them_is_the_same_for_long(name):
    subject = case(name, batch_size=2, quick=True)
    for part in subject.data():
        images = part[0] if isinstance(part, tuple) else part
        assert abs(images.flat[:1000]).min() > 0 and images.flat[:1000].std() > 0.1
