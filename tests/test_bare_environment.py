"""A network trains alike where the environment has almost nothing."""

import os
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import warnings
import numpy as np
import minigraph as mg
from minigraph import nn, ops, optim
warnings.simplefilter("ignore")
nn.manual_seed(0)
net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 3))
x, y = mg.input("x", (8, 20)), mg.input("y", (8,), "int64")
loss = ops.cross_entropy(net(x), y)
updates = optim.SGD(net.parameters(), lr=0.5).minimize(loss)
graph = mg.comp_graph("cpu", {"graph_opt_level": 3, "autotune": "off"})
step = graph.compile([x, y], loss, updates)
xs, ys = np.linspace(-1, 1, 160, dtype="float32").reshape(8, 20), np.arange(8) % 3
print(*(f"{float(step(xs, ys)):.4f}" for _ in range(6)))
"""
KEPT = ("MINIGRAPH_CACHE_DIR",)
USUAL = {"PATH": os.environ.get("PATH", os.defpath)}
NOWHERE = {**USUAL, "HOME": "/proc", "MINIGRAPH_CACHE_DIR": "/proc/nowhere"}
ASCII = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"}


def limited():
    for what, most in (("AS", 4 << 30), ("STACK", 512 << 10), ("FSIZE", 1 << 20)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{what}"), (most, most))


def one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def nobody():
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)


# A command that runs another one with a disk of 256 MiB at home.
ON_SMALL_DISK = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs -o size=256m none "$HOME" && exec "$0" "$@"',
)

# The arguments of Python, the environment, and what the process does before it begins.
ENVIRONMENTS = {
    "empty, on one core": ([], {}, one_core),
    "isolated, without docstrings and assertions": (["-I", "-B", "-OO"], USUAL, None),
    "ASCII alone, nowhere to write, and one thread": (
        [],
        {**NOWHERE, **ASCII, "OMP_NUM_THREADS": "1", "MINIGRAPH_NUM_THREADS": "1"},
        None,
    ),
    "nobody": ([], NOWHERE, nobody),
    "4 GiB of addresses, 512 KiB of stack, files of 1 MiB": ([], USUAL, limited),
}


def trained(arguments, environment, before=None, command=(sys.executable,)):
    variables = {name: os.environ[name] for name in KEPT if name in os.environ}
    completed = subprocess.run(
        [*command, *arguments, "-c", PROGRAM],
        env={**variables, **environment},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.fixture(scope="module")
def expected():
    return trained([], dict(os.environ))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_network_trains_alike(name, expected):
    try:
        assert trained(*ENVIRONMENTS[name]) == expected
    except PermissionError:
        pytest.skip("Python is not for everyone here")


def test_a_network_trains_alike_on_a_disk_of_256_mib(expected, tmp_path):
    environment = {
        **USUAL,
        **dict.fromkeys(("HOME", "TMPDIR"), str(tmp_path)),
        "MINIGRAPH_CACHE_DIR": str(tmp_path / "cache"),
    }
    try:
        command = [*ON_SMALL_DISK, "true"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("disks are not for everyone to mount")
    assert trained([], environment, command=[*ON_SMALL_DISK, sys.executable]) == expected
    assert not any(tmp_path.iterdir())  # what was written was on the disk
