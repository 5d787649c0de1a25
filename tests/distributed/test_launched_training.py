"""A training in several processes: one voice, one checkpoint, one end."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from attacks.launches import programs, started
from launched import start
from new_process import python, wait

import minigraph as mg

ROOT = Path(__file__).parents[2]


def test_processes_train_together_and_process_0_alone_prints_and_writes(tmp_path):
    printed, _ = wait(started(2, tmp_path, "--epochs", 1))
    assert "2 processes, each with 64 images of a batch\n" in printed
    assert len(re.findall("^epoch 1/1: loss", printed, re.M)) == 1
    assert mg.load(tmp_path / "checkpoint").keys() > {"net", "optimizer"}

    _, errors = wait(started(1, tmp_path, "--epochs", 2), status=1)  # a warning is an error here
    assert "the checkpoint is of 2 processes, these are 1: batches, their order" in errors


def test_an_error_of_all_processes_is_printed_once(tmp_path):
    _, errors = wait(started(2, tmp_path, "--batch-size", 31), status=2)
    text = "error: DataLoader: batch_size is 31, which 2 processes cannot share equally"
    assert errors.count(text) == 1
    assert "minigraph: process 0 of 2 ends all\n" in errors


@pytest.mark.long
def test_the_program_of_the_document_prints_the_same_in_one_process_and_in_two():
    pytest.importorskip("sklearn")
    text = ROOT.joinpath("docs", "distributed.md").read_text()
    program = re.search(r"```python\n(.*?)```", text, re.S)[1]
    (two, _), (one, _) = wait(start(2, "-c", program)), python("-c", program)
    assert two == one and re.fullmatch(r"loss 0\.\d+, 9\d% right\n", one)


@pytest.mark.long
def test_a_slow_network_is_hidden_behind_the_backward_pass():
    program = ROOT / "benchmarks" / "compare.py", "scaling"
    slow = "--link", 1, 0.2  # 1 Gbit/s, 0.2 ms
    asked = "resnet50", "--quick", "--batch-size", 8, "--budget", 0.01, *slow
    printed, _ = wait(start(2, *program, *asked, COLUMNS="400"))
    lines = printed.splitlines()
    at = next(i for i, line in enumerate(lines) if "hidden  " in line)
    head, row = (re.split(r"\s{2,}", line) for line in (lines[at], lines[at + 2]))
    shown = dict(zip(head[1:], row[1:], strict=True))
    assert float(shown["exchange"].removesuffix(" ms")) > 800  # 94 MiB at 1 Gbit/s
    assert int(shown["hidden"].removesuffix("%")) >= 70


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_one_process_stops_all_after_the_same_batch(tmp_path, number):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for folder in (stopped, whole):
        folder.mkdir()
    launcher = started(2, stopped, "--epochs", 100_000)
    while not (stopped / "checkpoint").exists():
        time.sleep(0.01)
    os.kill(programs(launcher.pid)[1], number)
    printed, _ = wait(launcher, status=130)
    epoch, batch = map(
        int, re.search(r"stopped in epoch (\d+) after batch (\d+)", printed).groups()
    )
    assert 1 <= batch <= 8
    for folder in (stopped, whole):
        wait(started(2, folder, "--epochs", epoch + 1))
    ended, expected = (mg.load(folder / "checkpoint") for folder in (stopped, whole))
    np.testing.assert_equal(ended, expected)
