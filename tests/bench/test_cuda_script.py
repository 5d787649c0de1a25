"""`benchmarks/cuda.sh`, with a `python3` that only notes what it is asked for; what it runs."""

import os
import re
import subprocess
import tarfile
from pathlib import Path

import compare
import pytest
from comparisons import profiling

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "cuda.sh"
NO_TIME = "stopped after.*left out: no time is left"


@pytest.fixture
def run(tmp_path):
    """Run the script; `body` is what its Python does after noting its arguments."""
    programs, log, out = tmp_path / "bin", tmp_path / "log", tmp_path / "results"
    programs.mkdir()

    def go(*options, body="exit 0", **tools):
        tools |= {"nvidia-smi": "echo name", "python3": f'echo "$@" >>$LOG\n{body}'}
        for name, text in tools.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", SCRIPT, "-o", out, *options]
        environment = {**os.environ, "PATH": path, "LOG": str(log)}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        with tarfile.open(f"{out}.tar.gz") as archive:
            names = {Path(name).name for name in archive.getnames()}
        return ended, log.read_text().splitlines(), names

    return go


PROGRAMS = [
    *("info", "contact", "tests"),
    *("resnet50_bfloat16", "alexnet_float32", "expressions"),
    *("profile", "nccl", "four_kernels"),
]
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]


def test_all_parts_run_in_order_and_say_what_is_left_out(run):
    ended, calls, names = run()
    assert ended.returncode == 0, ended.stderr
    ends = ended.stdout.splitlines()[-len(PROGRAMS) :]
    assert [line.split()[0] for line in ends] == PROGRAMS
    (left_out,) = (line for line in ends if "left out" in line)
    assert left_out.startswith("four_kernels") and "there is no ncu" in left_out
    (asked,) = (call for call in calls if "-m pytest" in call)
    assert (ROOT / asked.split()[-1]).is_dir()
    assert {"ends.txt", "info.txt", "contact.txt", "resnet50_bfloat16.txt"} <= names


def test_programs_of_the_toolkit_are_used_where_they_are(run):
    tools = {name: f'echo {name} "$@" >>$LOG' for name in ("compute-sanitizer", "ncu")}
    ended, calls, _ = run("profiles", "sanitizers", **tools)
    assert ended.returncode == 0 and "left out" not in ended.stdout
    sanitized = [call for call in calls if call.startswith("compute-sanitizer")]
    assert sorted(call.split()[2] for call in sanitized) == sorted(TOOLS)
    for file in {file for call in sanitized for file in re.findall(r"tests/\S*\.py", call)}:
        assert (ROOT / file).is_file()
    (ncu,) = (call for call in calls if call.startswith("ncu"))
    assert "--clock-control none --kill yes -f" in ncu and ncu.endswith("under_ncu")


@pytest.mark.parametrize(
    ("options", "body", "said", "kept"),
    [
        ((), "case $* in -c*) exit 1;; esac", "contact .* failed with status 1", "contact"),
        (("profiles",), "case $* in *profile*) exit 3;; esac", "failed with status 3", "nccl"),
        (("-t", "3", "networks"), "case $* in *resnet50*) exec sleep 30;; esac", NO_TIME, "info"),
    ],
)
def test_everything_comes_back_where_a_program_fails_or_hangs(run, options, body, said, kept):
    ended, calls, names = run(*options, body=body)
    assert ended.returncode == 1 and re.search(said, ended.stdout, re.S)
    assert {f"{kept}.txt", "ends.txt"} <= names
    assert kept != "contact" or not [call for call in calls if "pytest" in call]


def test_an_unknown_part_is_refused(run, tmp_path):
    ended = subprocess.run(
        ["bash", SCRIPT, "-o", tmp_path, "float8"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "there is no part float8" in ended.stderr


def test_a_profile_of_a_training_step_leaves_its_files(tmp_path, capsys):
    asked = ["mlp", "--quick", "--device", "cpu", "--budget", "0", "--out", str(tmp_path)]
    compare.main(["profile", *asked])
    assert {path.name for path in (tmp_path / "mlp").iterdir()} == {
        "profile.txt",
        "report.txt",
        "step.cache",
        "trace.json",
    }
    assert capsys.readouterr().out.count("loss ") == profiling.CALLS
