"""Launches: a process of a training is killed, all end soon, and the training goes on."""

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
TRAINING = 0.75  # the share of kills while the network is trained; the others are before
SOON = 10.0  # seconds in which the others have to end


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
    """Return the processes of Python below a launcher, which may have started none so far."""
    found, below = [], [launcher]
    while below:
        pid = below.pop()
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            below += children
            if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes() and pid != launcher:
                found.append(int(pid))
    return sorted(found)


def kill_one(processes, folder, draw):
    """Kill one of the processes of a training; the others must end, and the checkpoint be whole.

    Return the seconds until they have ended.
    """
    path = folder / "checkpoint"
    before = path.stat().st_mtime_ns if path.exists() else 0
    launcher = started(processes, folder, "--epochs", 100_000)
    with launcher:
        try:
            if draw.random() < TRAINING:
                while not path.exists() or path.stat().st_mtime_ns == before:
                    assert launcher.poll() is None, launcher.communicate()
                    time.sleep(0.001)
                time.sleep(draw.random())
            else:
                time.sleep(draw.random() * STARTING)
                while not programs(launcher.pid):
                    time.sleep(0.001)
            alive = programs(launcher.pid)
            os.kill(draw.choice(alive), signal.SIGKILL)
            begun = time.monotonic()
            printed, errors = launcher.communicate(timeout=SOON)
        finally:
            launcher.kill()
    assert launcher.returncode == signal.SIGKILL, printed + errors
    while any(Path(f"/proc/{pid}").exists() for pid in alive):
        assert time.monotonic() < begun + SOON, "a process outlives its launcher"
        time.sleep(0.01)
    ended = time.monotonic() - begun
    if path.exists():
        mg.load(path)
    return ended


def killed_launches(seed, folder, kills=4, processes=4):
    """Kill processes of a training, one at a time; it ends as one that nobody disturbs."""
    draw, slowest = random.Random(seed), 0.0
    disturbed, whole = folder / "disturbed", folder / "whole"
    for each in (disturbed, whole):
        each.mkdir()
    for _ in range(kills):
        slowest = max(slowest, kill_one(processes, disturbed, draw))
    epochs = 2
    if (disturbed / "checkpoint").exists():
        epochs += int(mg.load(disturbed / "checkpoint")["progress"]["epoch"])
    for each in (disturbed, whole):
        wait(started(processes, each, "--epochs", epochs))
    ended, wanted = (mg.load(each / "checkpoint") for each in (disturbed, whole))
    for part in ("net", "optimizer"):
        assert ended[part].keys() == wanted[part].keys()
        for name, array in wanted[part].items():
            np.testing.assert_array_equal(ended[part][name], array, name)
    milliseconds = round(slowest * 1000)
    return Counter({"kills": kills, "epochs": epochs, "slowest end, ms": milliseconds})
