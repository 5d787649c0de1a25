"""Launches: if one process of a training is killed, all end soon, and the training can resume."""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import launched
import numpy as np
from example_networks import EXAMPLES
from new_process import wait

import minigraph as mg

STARTING = 3.0  # seconds, roughly
TRAINING = 0.75  # share of kills while the network is trained; the others come before
SOON = 10.0  # seconds in which the other processes must end


def started(processes, folder, *arguments):
    """Start a training of an MLP with a checkpoint after each epoch, from the last one if any."""
    path = folder / "checkpoint"
    resume = ["--resume", path] if path.exists() else []
    data = ["--data", "synthetic", "--image-size", 8]  # which starts sooner than digits
    settings = [*data, "--threads", 1, "--workers", 0, "--batch-size", 128, "--best", ""]
    program = EXAMPLES / "mlp" / "train.py"
    arguments = ["--checkpoint", path, *resume, *settings, *arguments]
    return launched.start(processes, program, *arguments, MINIGRAPH_OPTIONS="autotune=off")


def programs(launcher):
    """Return the processes of Python that a launcher has started so far, sorted."""
    pids, pending = [], [launcher]
    while pending:
        pid = pending.pop()
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pending += children
            if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes() and pid != launcher:
                pids.append(int(pid))
    return sorted(pids)


def kill_one(processes, folder, draw):
    """Kill one of the processes of a training; the others must end, and the checkpoint be whole.

    Return the seconds until they have ended.
    """
    path = folder / "checkpoint"
    old_time = path.stat().st_mtime_ns if path.exists() else 0
    launcher = started(processes, folder, "--epochs", 100_000)
    with launcher:
        try:
            if draw.random() < TRAINING:
                while not path.exists() or path.stat().st_mtime_ns == old_time:
                    assert launcher.poll() is None, launcher.communicate()
                    time.sleep(0.001)
                time.sleep(draw.random())
            else:
                time.sleep(draw.random() * STARTING)
                while not programs(launcher.pid):
                    time.sleep(0.001)
            alive = programs(launcher.pid)
            os.kill(draw.choice(alive), signal.SIGKILL)
            begin = time.monotonic()
            printed, errors = launcher.communicate(timeout=SOON)
        finally:
            launcher.kill()
    assert launcher.returncode == signal.SIGKILL, printed + errors
    while any(Path(f"/proc/{pid}").exists() for pid in alive):
        assert time.monotonic() < begin + SOON, "a process outlives its launcher"
        time.sleep(0.01)
    seconds = time.monotonic() - begin
    if path.exists():
        mg.load(path)
    return seconds


def killed_launches(seed, folder, kills=4, processes=4):
    """Kill processes of a training, one at a time; it must end as one without kills."""
    draw, slowest = random.Random(seed), 0.0
    disturbed, whole = folder / "disturbed", folder / "whole"
    for run in (disturbed, whole):
        run.mkdir()
    for _ in range(kills):
        slowest = max(slowest, kill_one(processes, disturbed, draw))
    epochs = 2
    if (disturbed / "checkpoint").exists():
        epochs += int(mg.load(disturbed / "checkpoint")["progress"]["epoch"])
    for run in (disturbed, whole):
        wait(started(processes, run, "--epochs", epochs))
    ended, expected = (mg.load(run / "checkpoint") for run in (disturbed, whole))
    for part in ("net", "optimizer"):
        assert ended[part].keys() == expected[part].keys()
        for name, array in expected[part].items():
            np.testing.assert_array_equal(ended[part][name], array, name)
    milliseconds = round(slowest * 1000)
    return Counter({"kills": kills, "epochs": epochs, "slowest end, ms": milliseconds})
