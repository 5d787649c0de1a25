"""Damaged caches: whatever became of the files, results are right and the cache heals."""

import functools
import json
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
from minigraph.cache import Binaries, Measurements

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


def changed_lines(whole, random, words):
    """Yield changed cache files, without end.

    words  pairs of which the first stands in the file, and the second would mean something else
    """
    lines = whole.splitlines(keepends=True)
    while True:
        kind = random.randrange(7)
        at = random.randrange(len(whole))
        if kind == 0:
            yield whole[:at]
        elif kind == 1:
            yield whole[:at] + bytes([whole[at] ^ 1 << random.randrange(8)]) + whole[at + 1 :]
        elif kind == 2:
            other = random.randrange(len(whole))
            yield whole[: min(at, other)] + whole[max(at, other) :]
        elif kind == 3:
            yield b"".join(random.sample(lines, random.randrange(len(lines) + 1)))
        elif kind == 4:
            yield whole[:at] + random.randbytes(random.randrange(1, 50)) + whole[at:]
        elif kind == 5:  # values of different entries
            one, two = random.sample(lines, 2)
            values = [*json.loads(one).values(), *json.loads(two).values()]
            old, new = (json.dumps(v).encode() for v in random.sample(values, 2))
            yield whole.replace(old, new, 1)
        else:
            old, new = random.choice(words)
            yield whole.replace(old, new, random.randrange(1, 9))


# ---------------------------------------------------------------- a cache in use

LEVEL = 3
WORDS = [
    (b'"schema": 1', b'"schema": 2'),
    (b"x86_64", b"x86_63"),
    (b'"onednn"', b'"cudnn"'),
    (b'"seconds": ', b'"seconds": -'),
    (b"nchw", b"nhwc"),
    (b"winograd 4x4", b"winograd 2x2"),
]


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
    """Return the files of a cache by their paths in its folder, a cache file, and the results."""
    with pytest.MonkeyPatch.context() as patch:
        begin(patch, folder / "cache")
        step, _, _ = train()
        step.save_cache(folder / "net.cache")
        written = compiled(net := network(wide=32), level=0)
        losses = [written(*batch()) for _ in range(3)]
    root = folder / "cache"
    files = {p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    wanted = [np.array(losses), *(p.numpy() for p in net.updates)]
    return files, (folder / "net.cache").read_bytes(), wanted


def damaged_cache(seed, folder):
    """Damage some files of a cache and a cache file, and train with them three times over."""
    draw = random.Random(seed)
    files, cache_file, wanted = whole_cache(_prepared())
    root, counts = folder / "cache", Counter()
    chosen = draw.sample(sorted(files), draw.choice((1, 1, 2, 5)))
    what = []
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.chmod(0o700)
        if path in chosen:
            name = draw.choice([*MUTATIONS, "another file", "none"])
            what.append(f"{path}: {name}")
            counts["files damaged"] += 1
            if name == "none":
                continue
            if name == "another file":
                data = files[draw.choice(sorted(files))]
            else:
                data = MUTATIONS[name](data, draw)
        target.touch(0o600)
        target.write_bytes(data)
    saved = folder / "net.cache"
    saved.touch(0o600)
    saved.write_bytes(next(changed_lines(cache_file, draw, WORDS)))
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
        left = [*Measurements(root).verify(), *Binaries(root).verify()]
        counts["damaged entries that nobody asked for"] += len(left)
    return counts


@functools.cache
def _prepared():
    """Return a folder of this process, which goes with the process's temporary folder."""
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"whole-{os.getpid()}"
    folder.mkdir(mode=0o700)
    return folder
