"""`benchmarks/cuda.sh`, with a `python3` that only notes what it is asked for."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "cuda.sh"


@pytest.fixture
def run(tmp_path):
    """Run the script; `body` is what its Python does after noting its arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "log"

    def program(name, text):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)

    def go(*options, body="exit 0"):
        program("nvidia-smi", "echo name")
        program("python3", f'echo "$@" >>{log}\n{body}')
        out = tmp_path / "results"
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            ["bash", SCRIPT, "-o", out, *options],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        with tarfile.open(f"{out}.tar.gz") as archive:
            names = {Path(name).name for name in archive.getnames()}
        return ended, log.read_text().splitlines(), names

    return go


def test_it_runs_the_tests_that_there_are(run):
    ended, calls, names = run("tests")
    assert ended.returncode == 0, ended.stderr
    files = [call.split()[-1] for call in calls if call.startswith("-m pytest")]
    assert len(files) == 3
    for file in files:
        assert (ROOT / file).is_file()
    assert {"ends.txt", "info.json", "test_cuda_device.txt"} <= names


def test_everything_comes_back_where_a_part_fails(run):
    ended, _, names = run("expressions", body="echo half; case $* in *bench*) exit 3;; esac")
    assert ended.returncode == 1
    assert "failed with status 3" in ended.stdout
    assert {"expressions.txt", "ends.txt"} <= names


def test_everything_comes_back_where_a_part_runs_out_of_time(run):
    ended, calls, names = run(
        "-t", "1", "float32", "tf32", body="case $* in *bench*) exec sleep 30;; esac"
    )
    assert ended.returncode == 1
    assert ended.stdout.count("stopped after 1 s") == 2
    assert {"float32.txt", "tf32.txt", "ends.txt"} <= names
    assert any("cache export" in call for call in calls)


def test_an_unknown_part_is_refused(run, tmp_path):
    ended = subprocess.run(
        ["bash", SCRIPT, "-o", tmp_path, "float8"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "there is no part float8" in ended.stderr
