"""Damaged caches: whatever the files hold, results are right and the cache heals."""

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
    i = rng.randrange(len(data))
    return data[:i] + bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 :]


def flip_many(data, rng):
    for _ in range(rng.randrange(2, 100)):
        data = flip(data, rng)
    return data


def zero_page(data, rng):
    start = rng.randrange(len(data) // 4096 + 1) * 4096
    return data[:start] + bytes(len(data[start : start + 4096])) + data[start + 4096 :]


def swap(data, rng):
    """Exchange two pieces of equal length: pages, or parts of rows."""
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
        reference = compiled(net := network(wide=32), level=0)
        losses = [reference(*batch()) for _ in range(3)]
    expected = [np.array(losses), *(p.numpy() for p in net.updates)]
    database = (folder / "cache" / FILE_NAME).read_bytes()
    return database, (folder / "net.cache").read_bytes(), expected


def damaged_cache(seed, folder):
    """Damage the database of a cache folder and a cache file; train with them three times."""
    draw = random.Random(seed)
    database, cache_file, expected = whole_cache(_prepared())
    root, saved, counts = folder / "cache", folder / "net.cache", Counter()
    root.mkdir(mode=0o700)
    damage = []
    for path, whole in ((root / FILE_NAME, database), (saved, cache_file)):
        damage.append(draw.choice([*MUTATIONS]))
        path.touch(0o600)
        path.write_bytes(MUTATIONS[damage[-1]](whole, draw))
        counts["files damaged"] += 1
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", mg.MinigraphWarning)
        for turn in range(3):
            begin(patch, root)
            _, results, loaded = train(saved if turn == 0 and draw.random() < 0.5 else None)
            for value, reference in zip(results, expected, strict=True):
                scale = np.abs(reference).max()
                np.testing.assert_allclose(value, reference, 0, 1e-3 * scale, err_msg=str(damage))
            if loaded:
                counts["entries rejected"] += len(loaded.rejected)
                assert all(n and reason and "\n" not in reason for n, reason in loaded.rejected)
        assert work() == (0, 0), f"{damage}: the cache did not heal: {work()}"
        counts["damaged entries that nobody asked for"] += len(Store(root).verify())
    return counts


@functools.cache
def _prepared():
    """Return a folder of this process, removed with the process's temporary folder."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"whole-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder
