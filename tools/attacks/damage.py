"""Damaged caches: whatever became of the files, results are right and the cache heals."""

import functools
import os
import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from new_process import begin
from small_network import batch, compiled, graph_compiler, network, work

import minigraph as mg
from minigraph.cache import Store
from minigraph.cache.store import FILE_NAME

# ---------------------------------------------------------------- ways to damage bytes


def flip(data, rng):
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def flip_many(data, rng):
    for _ in range(rng.randrange(2, 100)):
        data = flip(data, rng)
    return data


def zero_page(data, rng):
    at = rng.randrange(len(data) // 4096 + 1) * 4096
    return data[:at] + bytes(len(data[at : at + 4096])) + data[at + 4096 :]


def swap(data, rng):
    """Exchange two pieces, which may be pages or parts of rows."""
    n = rng.choice([n for n in (16, 64, 500, 4096) if 3 * n <= len(data)] or [1])
    a, b = sorted(rng.sample(range(0, len(data) - n, n), 2))
    return data[:a] + data[b : b + n] + data[a + n : b] + data[a : a + n] + data[b + n :]


MUTATIONS = {
    "flipped bit": flip,
    "flipped bits": flip_many,
    "truncated": lambda data, rng: data[: rng.randrange(len(data))],
    "zeros": zero_page,
    "swapped": swap,
    "longer": lambda data, rng: data + rng.randbytes(rng.randrange(1, 9999)),
    "repeated": lambda data, rng: data * 2,
    "garbage": lambda data, rng: rng.randbytes(rng.randrange(1, 20_000)),
    "garbage after the header": lambda data, rng: data[:100] + rng.randbytes(len(data[100:])),
    "empty": lambda data, rng: b"",
    "text": lambda data, rng: b"no database" * 100,
}


# ---------------------------------------------------------------- a cache in use

LEVEL = 3


def train(cache_file=None):
    """Train a network for three steps; return its losses and parameters."""
    net = network(wide=32)
    graph = graph_compiler(LEVEL)
    loaded = cache_file and graph.load_cache(cache_file)
    step = graph.compile(net.inputs, net.loss, updates=net.updates)
    losses = [step(*batch()) for _ in range(3)]
    return step, [np.array(losses), *(p.numpy() for p in net.updates)], loaded


@functools.cache
def whole_cache(folder):
    """Return the database of a cache folder, a cache file, and the results."""
    with pytest.MonkeyPatch.context() as patch:
        begin(patch, folder / "cache")
        step, _, _ = train()
        step.save_cache(folder / "net.cache")
        written = compiled(net := network(wide=32), level=0)
        losses = [written(*batch()) for _ in range(3)]
    wanted = [np.array(losses), *(p.numpy() for p in net.updates)]
    database = (folder / "cache" / FILE_NAME).read_bytes()
    return database, (folder / "net.cache").read_bytes(), wanted


def damaged_cache(seed, folder):
    """Damage the database of a cache folder and a cache file; train with them three times over."""
    draw = random.Random(seed)
    database, cache_file, wanted = whole_cache(_prepared())
    root, saved, counts = folder / "cache", folder / "net.cache", Counter()
    root.mkdir(mode=0o700)
    what = []
    for path, whole in ((root / FILE_NAME, database), (saved, cache_file)):
        what.append(draw.choice([*MUTATIONS]))
        path.touch(0o600)
        path.write_bytes(MUTATIONS[what[-1]](whole, draw))
        counts["files damaged"] += 1
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", mg.MinigraphWarning)
        for turn in range(3):
            begin(patch, root)
            _, found, loaded = train(saved if turn == 0 and draw.random() < 0.5 else None)
            for value, want in zip(found, wanted, strict=True):
                scale = np.abs(want).max()
                np.testing.assert_allclose(value, want, 0, 1e-3 * scale, err_msg=str(what))
            if loaded:
                counts["entries rejected"] += len(loaded.rejected)
                assert all(name and why and "\n" not in why for name, why in loaded.rejected)
        assert work() == (0, 0), f"{what}: the cache did not heal: {work()}"
        counts["damaged entries that nobody asked for"] += len(Store(root).verify())
    return counts


@functools.cache
def _prepared():
    """Return a folder of this process, which goes with the process's temporary folder."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"whole-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder
