"""Kills: after a process is killed, its finished work is whole, and no files are left for ever.

A nursery, which computes nothing itself, forks a worker for each kill, and then a checker.
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

OLD = 7 * 86_400  # seconds after which a temporary file counts as abandoned


class Activity(NamedTuple):
    """What a killed process was doing.

    work   called with a folder, the number of the first step and a function; does steps for ever,
           and calls the function with the number of each finished step
    check  called with the folder and the number of reported steps; raises if one is lost
    """

    work: Callable[[Path, int, Callable[[int], None]], None]
    check: Callable[[Path, int], None]


# ---------------------------------------------------------------- compiling and tuning


def expression(number):
    """Return an input and an expression, whose kernel differs for each number."""
    x = mg.input("x", (3, 40))
    y = x
    for bit in range(8):
        y = ops.tanh(y) + x if number >> bit & 1 else ops.exp(-ops.square(y)) * x
    return x, y


def compiled(number):
    x, y = expression(number % 256)
    options = {"graph_opt_level": 3, "autotune": "off", "num_threads": 1}
    return mg.comp_graph("cpu", options).compile([x], y)


def compiling(folder, first, report):
    for i in itertools.count(first):
        compiled(i)
        report(i)


def compiled_is_found(folder, steps):
    assert Store(folder / "cache").verify() == []
    values = np.linspace(-2, 2, 120, dtype=np.float32).reshape(3, 40)
    for i in range(max(steps - 3, 0), steps):
        mg.jit.reset_stats()
        function = compiled(i)
        assert mg.jit.stats().compilations == 0, f"kernel {i} of {steps} is lost"
        x, y = expression(i % 256)
        expected = mg.comp_graph("reference").compile([x], y)(values)
        np.testing.assert_allclose(function(values), expected, rtol=1e-4, atol=1e-5)


def tuned(number, autotune):
    x = mg.input("x", (1, 8 + number % 64, 5, 5))
    w = mg.Parameter(np.ones((8 + number // 64, x.shape[1], 3, 3), np.float32), "w")
    options = {"autotune": autotune, "autotune.budget": 5.0, "num_threads": 1}
    return mg.comp_graph("cpu", options).compile([x], ops.conv2d(x, w))


def tuning(folder, first, report):
    for i in itertools.count(first):
        tuned(i, "tune")
        report(i)


def tuned_is_found(folder, steps):
    assert Store(folder / "cache").verify() == []
    for i in range(steps):
        tuned(i, "frozen")  # raises if an entry is missing


# ---------------------------------------------------------------- writing files


def saving_caches(folder, first, report):
    functions = [compiled(i) for i in range(3)]
    for i in itertools.count(first):
        functions[i % 3].save_cache(folder / "some.cache")
        report(i)


def caches_are_whole(folder, steps):
    if steps or (folder / "some.cache").exists():
        contents = file.read(folder / "some.cache")
        assert not contents.rejected, contents.rejected
        assert len(contents.entries) >= min(steps, 3)


def saving_arrays(folder, first, report):
    for i in itertools.count(first):
        mg.save(folder / "arrays", {"a": np.full(100_000, i), "b": np.full((3, 5), i)})
        report(i)


def arrays_are_whole(folder, steps):
    if steps or (folder / "arrays").exists():
        values = {n for array in mg.load(folder / "arrays").values() for n in np.unique(array)}
        assert values <= {steps - 1, steps} and len(values) == 1, (values, steps)


# ---------------------------------------------------------------- training


def train(folder, *args):
    """Run a training of three epochs that writes a checkpoint, in this process."""
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


def training_goes_on(folder, first, report):
    train(folder, *resumed(folder))
    time.sleep(60)


def training_ends_the_same(folder, steps):
    if (folder / "checkpoint").exists():
        mg.load(folder / "checkpoint")
    if steps < 0:  # after the last kill
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


def leftover_files(folder):
    """Return the temporary files of unfinished writers and compilers in a folder."""
    temporary = [p for p in folder.rglob("*.tmp") if p.is_file()]
    return [*temporary, *(folder / "tmp").glob("minigraph-*")]


def forked(work):
    """Run a function in a child; return its process id."""
    pid = os.fork()
    if not pid:
        os.setpgid(0, 0)  # one group with the compilers that it starts
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return pid


def nursery(name, folder, kills, seed):
    """Kill workers of an activity, check their files, and print counts as JSON."""
    draw, counts = random.Random(seed), Counter()
    activity = ACTIVITIES[name]
    (folder / "tmp").mkdir()
    steps = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        pid = forked(
            lambda first=steps, to=writer: activity.work(
                folder, first, lambda i: os.write(to, struct.pack("q", i))
            )
        )
        os.close(writer)
        time.sleep(draw.random() ** 2 * 2.0)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, name
        with os.fdopen(reader, "rb") as reports:
            for (number,) in struct.iter_unpack("q", reports.read()):
                steps = number + 1
        counts["kills"] += 1
        check(activity, folder, steps)
    counts["steps done"] = steps
    check(activity, folder, -1 if name == "train" else steps)
    _settle(activity, folder, steps, counts)
    print(json.dumps(counts))


def check(activity, folder, steps):
    pid = forked(lambda: activity.check(folder, steps))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"after {steps} steps the check ended with {status}"


def _settle(activity, folder, steps, counts):
    """Do some steps in a later process, which must remove the files that killed ones left."""
    while any(map(_works_in(folder), Path("/proc").glob("[0-9]*"))):  # a compiler still runs
        time.sleep(0.1)
    leftovers = leftover_files(folder)
    counts["leavings"] = len(leftovers)
    for path in leftovers:
        with contextlib.suppress(OSError):
            os.utime(path, (time.time() - OLD,) * 2, follow_symlinks=False)
    if activity.work is training_goes_on:
        return
    extra = 3

    def work_a_little(number):
        if number >= steps + extra:
            compiled(-1)  # a new kernel
            os._exit(0)

    pid = forked(lambda: activity.work(folder, steps, work_a_little))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, f"a process after the kills ended with {status}"
    remaining = [
        str(path.relative_to(folder)) for path in set(leftover_files(folder)) & set(leftovers)
    ]
    assert not remaining, f"files of killed processes are never removed: {remaining}"


def _works_in(folder):
    """Return a function: whether a process of /proc works in the temporary folder of `folder`."""

    def works(process):
        with contextlib.suppress(OSError):
            return Path(os.readlink(process / "cwd")).is_relative_to(folder / "tmp")
        return False

    return works


def killed(seed, folder, kills=8):
    """Kill processes of a random activity."""
    name = random.Random(seed).choice([*ACTIVITIES])
    return killed_while(name, seed, folder, kills)


def killed_while(name, seed, folder, kills):
    """Kill `kills` processes of an activity, one after another."""
    script = "import sys, pathlib\nfrom attacks.kills import nursery\n"
    script += "nursery(sys.argv[1], pathlib.Path(sys.argv[2]), *map(int, sys.argv[3:]))"
    variables = {"MINIGRAPH_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    process = start("-c", script, name, folder, kills, seed, **variables)
    return Counter({f"{name}: {k}": v for k, v in json.loads(wait(process)[0]).items()})
