"""Kills: whatever a process did when it was killed, what was done stays, and nothing grows.

A nursery, which computes nothing itself, forks a worker for each kill, and a checker after it.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import command_line
import numpy as np
from new_process import start, wait
from small_training import PROGRAM

import minigraph as mg
from minigraph import ops
from minigraph.cache import Store, file

OLD = 7 * 86_400  # seconds after which nobody works on a file any more


class Activity(NamedTuple):
    """What is killed.

    work   called with a folder and the number of the first step, does steps without end; it tells
           the number of each that is done
    check  called with the folder and how many steps were told of; raises if one is lost
    """

    work: Callable[[Path, int, Callable[[int], None]], None]
    check: Callable[[Path, int], None]


# ---------------------------------------------------------------- compiling and tuning


def expression(number):
    """Return an input and an expression whose kernel no other number has."""
    x = mg.input("x", (3, 40))
    y = x
    for bit in range(8):
        y = ops.tanh(y) + x if number >> bit & 1 else ops.exp(-ops.square(y)) * x
    return x, y


def compiled(number):
    x, y = expression(number % 256)
    options = {"graph_opt_level": 3, "autotune": "off", "num_threads": 1}
    return mg.comp_graph("cpu", options).compile([x], y)


def compiling(folder, first, tell):
    for i in itertools.count(first):
        compiled(i)
        tell(i)


def compiled_is_found(folder, done):
    assert Store(folder / "cache").verify() == []
    given = np.linspace(-2, 2, 120, dtype=np.float32).reshape(3, 40)
    for i in range(max(done - 3, 0), done):
        mg.jit.reset_stats()
        function = compiled(i)
        assert mg.jit.stats().compilations == 0, f"kernel {i} of {done} is lost"
        x, y = expression(i % 256)
        wanted = mg.comp_graph("reference").compile([x], y)(given)
        np.testing.assert_allclose(function(given), wanted, rtol=1e-4, atol=1e-5)


def tuned(number, how):
    x = mg.input("x", (1, 8 + number % 64, 5, 5))
    w = mg.Parameter(np.ones((8 + number // 64, x.shape[1], 3, 3), np.float32), "w")
    options = {"autotune": how, "autotune.budget": 5.0, "num_threads": 1}
    return mg.comp_graph("cpu", options).compile([x], ops.conv2d(x, w))


def tuning(folder, first, tell):
    for i in itertools.count(first):
        tuned(i, "tune")
        tell(i)


def tuned_is_found(folder, done):
    assert Store(folder / "cache").verify() == []
    for i in range(done):
        tuned(i, "frozen")  # an error if anything is missing


# ---------------------------------------------------------------- writing files


def saving_caches(folder, first, tell):
    functions = [compiled(i) for i in range(3)]
    for i in itertools.count(first):
        functions[i % 3].save_cache(folder / "some.cache")
        tell(i)


def caches_are_whole(folder, done):
    if done or (folder / "some.cache").exists():
        contents = file.read(folder / "some.cache")
        assert not contents.rejected, contents.rejected
        assert len(contents.entries) >= min(done, 3)


def saving_arrays(folder, first, tell):
    for i in itertools.count(first):
        mg.save(folder / "arrays", {"a": np.full(100_000, i), "b": np.full((3, 5), i)})
        tell(i)


def arrays_are_whole(folder, done):
    if done or (folder / "arrays").exists():
        values = {n for array in mg.load(folder / "arrays").values() for n in np.unique(array)}
        assert values <= {done - 1, done} and len(values) == 1, (values, done)


# ---------------------------------------------------------------- training


def train(folder, *args):
    """Run a training of three epochs, of which a checkpoint is kept, in this process."""
    names = {"__name__": "program"}
    exec(PROGRAM, names)
    os.environ["MINIGRAPH_OPTIONS"] = "autotune=off"
    command = ["--data", "synthetic", "--opt-level", "3", "--lr", "0.01", *map(str, args)]
    sys.argv = ["train.py", *command]
    with (
        open(os.devnull, "w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
        contextlib.suppress(SystemExit),
    ):
        command_line.run(names["main"])


def resumed(folder):
    path = folder / "checkpoint"
    return ["--checkpoint", path, *(["--resume", path] if path.exists() else [])]


def training_goes_on(folder, first, tell):
    train(folder, *resumed(folder))
    time.sleep(60)


def training_ends_the_same(folder, done):
    if (folder / "checkpoint").exists():
        mg.load(folder / "checkpoint")
    if done < 0:  # after the last kill
        train(folder, *resumed(folder))
        train(folder, "--checkpoint", folder / "whole")
        part, whole = mg.load(folder / "checkpoint"), mg.load(folder / "whole")
        assert part.keys() == whole.keys()
        for name, array in whole.items():
            np.testing.assert_array_equal(part[name], array, name)


ACTIVITIES = {
    "compile": Activity(compiling, compiled_is_found),
    "tune": Activity(tuning, tuned_is_found),
    "save_cache": Activity(saving_caches, caches_are_whole),
    "save": Activity(saving_arrays, arrays_are_whole),
    "train": Activity(training_goes_on, training_ends_the_same),
}

# ---------------------------------------------------------------- the nursery


def leavings(folder):
    """Return what an unfinished writer or compiler has left, in the folder and below."""
    temporary = [p for p in folder.rglob("*.tmp") if p.is_file()]
    return [*temporary, *(folder / "tmp").glob("minigraph-*")]


def forked(work):
    """Run a function in a child; return its process id."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)  # with the compilers that it starts, it may be killed
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


def nursery(name, folder, kills, seed):
    """Kill workers of an activity, check what they leave, and print counts as JSON."""
    draw, counts = random.Random(seed), Counter()
    activity = ACTIVITIES[name]
    (folder / "tmp").mkdir()
    done = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        pid = forked(
            lambda first=done, to=writer: activity.work(
                folder, first, lambda i: os.write(to, struct.pack("q", i))
            )
        )
        os.close(writer)
        time.sleep(draw.random() ** 2 * 2.0)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, name
        with os.fdopen(reader, "rb") as told:
            for (number,) in struct.iter_unpack("q", told.read()):
                done = number + 1
        counts["kills"] += 1
        check(activity, folder, done)
    counts["steps done"] = done
    check(activity, folder, -1 if name == "train" else done)
    _settle(activity, folder, done, counts)
    print(json.dumps(counts))


def check(activity, folder, done):
    pid = forked(lambda: activity.check(folder, done))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"after {done} steps the check ended with {status}"


def _settle(activity, folder, done, counts):
    """Let a later process do some steps; what the killed ones have left must be gone then."""
    while any(map(_works_in(folder), Path("/proc").glob("[0-9]*"))):  # a compiler that outlives
        time.sleep(0.1)
    left = leavings(folder)
    counts["leavings"] = len(left)
    for path in left:
        with contextlib.suppress(OSError):
            os.utime(path, (time.time() - OLD,) * 2, follow_symlinks=False)
    if activity.work is training_goes_on:
        return
    steps = 3

    def some(number):
        if number >= done + steps:
            compiled(-1)  # a kernel that is new
            os._exit(0)

    pid = forked(lambda: activity.work(folder, done, some))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"after the kills nothing can be done: {status}"
    still = [str(path.relative_to(folder)) for path in set(leavings(folder)) & set(left)]
    assert not still, f"what killed processes left stays for ever: {still}"


def _works_in(folder):
    """Return a function that says whether a process of /proc has its working folder in a folder."""

    def works(process):
        with contextlib.suppress(OSError):
            return Path(os.readlink(process / "cwd")).is_relative_to(folder / "tmp")
        return False

    return works


def killed(seed, folder, kills=8):
    """Kill processes that do one thing or another."""
    name = random.Random(seed).choice([*ACTIVITIES])
    return killed_while(name, seed, folder, kills)


def killed_while(name, seed, folder, kills):
    """Kill processes that do what an activity says, as often as `kills` says."""
    script = "import sys, pathlib\nfrom attacks.kills import nursery\n"
    script += "nursery(sys.argv[1], pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:]))"
    variables = {"MINIGRAPH_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    process = start("-c", script, name, folder, kills, seed, **variables)
    return Counter({f"{name}: {k}": v for k, v in json.loads(wait(process)[0]).items()})
