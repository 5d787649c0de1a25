"""`minigraph bench` from the command line: its files, and errors of its arguments."""

import argparse
import sys
from types import SimpleNamespace

import pytest

import minigraph as mg
from minigraph import cli
from minigraph.bench import command, results
from minigraph.bench.results import Results
from minigraph.devices.cpu import amx


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of a run of the command on its smallest case."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    arguments = "--quick --models mlp --levels 3 --peers none --repeats 3 --batch-size 4"
    arguments += " --budget 1 --threads 1"
    assert cli.main(["bench", *arguments.split(), "--out", str(folder)]) == 0
    return folder


def test_a_run_keeps_every_sample_of_every_side(out):
    run = Results.read(out)
    assert list(run.cases) == ["mlp"]
    mlp = run.cases["mlp"]
    assert list(mlp.sides) == ["level 3"]
    for side in mlp.sides.values():
        assert len(side.seconds) == 3 and min(side.seconds) > 0
        assert not side.error and side.cold > 0 and side.warm is None
        assert side.roofline > 0
        if sys.platform == "linux":
            assert side.peak > 1 << 20
    assert run.versions["minigraph"] == mg.__version__
    assert run.options["quick"] and run.options["levels"] == [3]


def test_results_of_a_gpu_name_it(monkeypatch):
    backend = SimpleNamespace(versions={"gpu": "NVIDIA H200", "cudnn": "91900"})
    monkeypatch.setattr(results, "open_backend", lambda device, values: backend)
    assert Results.begin({"device": "cuda"}).versions["gpu"] == "NVIDIA H200"
    assert "gpu" not in Results.begin({"device": "cpu"}).versions


def test_the_page_made_again_from_the_results_is_the_same(out, capsys):
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert cli.main(["bench", "--render", str(out)]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert set(before) == {"results.json", "README.md"}


@pytest.mark.parametrize(
    "arguments",
    ["--models nonsense", "--levels 4", "--peers tensorflow", "--precision int8", "--repeats 0"],
)
def test_arguments_that_do_not_fit_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", *arguments.split()])
    errors = capsys.readouterr().err
    assert stopped.value.code == 2
    assert errors.count("\n") == 1 and arguments.split()[1] in errors


def test_a_folder_that_cannot_be_made_is_one_line_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert cli.main(["bench", "--models", "abc", "--out", str(tmp_path / "file" / "out")]) == 1
    errors = capsys.readouterr().err.splitlines()[-1]
    assert errors == f"minigraph: --out: {tmp_path}/file/out cannot be made: Not a directory"


def test_results_that_cannot_be_written_are_printed_nevertheless(monkeypatch, tmp_path, capsys):
    (tmp_path / "results.json").mkdir()

    def measure(plan, options, begin, save):
        save(Results.begin(options))
        return Results.begin(options)

    monkeypatch.setattr(command, "measure_cases", measure)
    assert cli.main(["bench", "--models", "abc", "--out", str(tmp_path)]) == 1
    errors = capsys.readouterr()
    error = f"minigraph: {tmp_path}/results.json cannot be written: Is a directory"
    assert errors.err.splitlines()[-1] == error
    assert errors.out.strip()


def test_a_folder_without_results_is_one_line(tmp_path, capsys):
    assert cli.main(["bench", "--render", str(tmp_path)]) == 1
    assert "minigraph bench --out" in capsys.readouterr().err
    (tmp_path / "results.json").write_text('{"cases": {"abc": 3}}')
    assert cli.main(["bench", "--render", str(tmp_path)]) == 1
    assert "is not a result" in capsys.readouterr().err


def test_a_precision_that_this_processor_lacks_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(amx, "why_not", lambda: "the processor has no AMX")
    assert cli.main(["bench", "--device", "cpu", "--precision", "bf16x3"]) == 1
    errors = capsys.readouterr().err
    assert "precision='bf16x3'" in errors and "AMX" in errors and errors.count("\n") == 1


def test_a_precision_of_this_processor_is_measured(monkeypatch):
    monkeypatch.setattr(amx, "why_not", lambda: "")
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    plan = command.plan_of(parser.parse_args(["--device", "cpu", "--precision", "bf16x3"]))
    assert plan.precision == "bf16x3"


def test_a_precision_that_the_cpu_does_not_have_is_one_line(tmp_path, capsys):
    arguments = ["--device", "cpu", "--precision", "tf32", "--out", str(tmp_path / "out")]
    assert cli.main(["bench", *arguments]) == 1
    errors = capsys.readouterr().err
    assert "--precision tf32 takes --device cuda" in errors and errors.count("\n") == 1
    assert not (tmp_path / "out").exists()
