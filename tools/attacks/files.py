"""Files of each kind, given to each reader of files: it must answer soon, in one line."""

import argparse
import contextlib
import io
import os
import random
import resource
import signal
import socket
import time
import warnings
from collections import Counter
from pathlib import Path

import command_line
import loop
import numpy as np
from PIL import Image

import minigraph as mg
from minigraph import cli, nn, optim
from minigraph.data import CIFAR10, ImageFolder, Synthetic

SECONDS = 20  # in which a reader must answer; none takes a tenth of one
MEMORY = 3 << 30  # bytes that it may allocate

# ---------------------------------------------------------------- files


def link_to(target):
    return lambda path, whole, draw: path.symlink_to(target)


def holding(change):
    return lambda path, whole, draw: path.write_bytes(change(whole, draw))


def flipped(whole, draw):
    i = draw.randrange(len(whole))
    return whole[:i] + bytes([whole[i] ^ 1 << draw.randrange(8)]) + whole[i + 1 :]


def sparse(path, whole, draw):
    path.write_bytes(whole[: draw.randrange(len(whole))])
    os.truncate(path, draw.choice((5 << 30, 1 << 40)))


def unreadable(path, whole, draw):
    path.write_bytes(whole)
    path.chmod(0)


def bound(path, whole, draw):
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(path.parent):
        listener.bind(path.name)  # the path of a socket must be short


KINDS = {
    "missing": lambda path, whole, draw: None,
    "a pipe": lambda path, whole, draw: os.mkfifo(path),
    "a socket": bound,
    "endless": link_to("/dev/zero"),
    "random": link_to("/dev/urandom"),
    "nothing": link_to("/dev/null"),
    "full": link_to("/dev/full"),
    "a folder": lambda path, whole, draw: path.mkdir(),
    "a link to itself": lambda path, whole, draw: path.symlink_to(path.name),
    "a link to nothing": link_to("/nowhere/at/all"),
    "a file of the kernel": link_to("/proc/self/status"),
    "the memory": link_to("/proc/self/mem"),
    "empty": holding(lambda whole, draw: b""),
    "one byte": holding(lambda whole, draw: draw.randbytes(1)),
    "bytes": holding(lambda whole, draw: draw.randbytes(draw.randrange(1, 20_000))),
    "text": holding(lambda whole, draw: b"{[<" * draw.randrange(1, 50_000)),
    "cut off": holding(lambda whole, draw: whole[: draw.randrange(len(whole))]),
    "flipped": holding(flipped),
    "twice": holding(lambda whole, draw: whole * 2),
    "huge": sparse,
    "unreadable": unreadable,
}

ENDLESS = ("a pipe", "endless", "random", "full")  # a reader could wait for their end for ever

# ---------------------------------------------------------------- readers


def new_training():
    """Return a training that can resume from a checkpoint."""
    recipe = command_line.Recipe(image_size=4, batch_size=2, epochs=2, lr=1e-3, lr_epochs=1)
    data = Synthetic((1, 4, 4), classes=2, length=4)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    args = argparse.Namespace(workers=0, seed=0, model="net", data="synthetic", device=None)
    return loop.Classification(net, optim.SGD(net.parameters(), 0.1), (data, data), recipe, args)


def load(path):
    return "" if mg.load(path) else "nothing"


def load_graph(path):
    return "" if mg.load_graph(path).inputs else "nothing"


def load_cache(path):
    loaded = mg.comp_graph("cpu").load_cache(path)
    return "; ".join(f"{name}: {reason}" for name, reason in loaded.rejected)


def import_cache(path):
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        cli.main(["cache", "import", str(path)])
    lines = (errors.getvalue() or printed.getvalue()).splitlines()
    return "" if lines[0].endswith(" 0 rejected") else "; ".join(lines)


def resume(path):
    new_training().resume(str(path), None)
    return ""


def cifar(path):
    return "" if len(CIFAR10(path.parent, train=False)) else "nothing"


def picture(path):
    images = ImageFolder(path.parent.parent, 8)
    return "" if images[0] else "nothing"


def write_good(path, reader):
    """Write a good file for a reader, and return its bytes."""
    if reader in (load, resume):
        new_training().save(str(path))
    elif reader is load_graph:
        x = mg.input("x", (4,))
        mg.save_graph(path, x, x * mg.Parameter(np.ones(4, "float32"), "w"))
    elif reader in (load_cache, import_cache):
        x = mg.input("x", (4,))
        mg.comp_graph("cpu", {"graph_opt_level": 3}).compile([x], x * 2 + 1).save_cache(path)
    elif reader is cifar:
        path.write_bytes(np.random.default_rng(0).integers(0, 9, 3 * 3073, np.uint8).tobytes())
    else:
        Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(path)
    return path.read_bytes()


# The readers, with the name of the file that each reads.
READERS = {
    load: "a.safetensors",
    load_graph: "a.graph",
    load_cache: "a.cache",
    import_cache: "b.cache",
    resume: "checkpoint",
    cifar: "test_batch.bin",
    picture: "photo.png",
}


class Hanging(BaseException):
    """A reader did not answer in time."""


@contextlib.contextmanager
def within_limits():
    """Raise Hanging after SECONDS, and MemoryError beyond MEMORY."""

    def hang(number, frame):
        raise Hanging(f"no answer within {SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, hang)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)


def odd_files(seed, folder):
    """Give a file of each kind to each reader: it must read it, or say in one line why not."""
    draw, counts = random.Random(seed), Counter()
    for reader, name in READERS.items():
        path = folder / reader.__name__ / "good" / "class" / name
        path.parent.mkdir(parents=True)
        whole = write_good(path, reader)
        assert reader(path) == ""
        for kind, make in KINDS.items():
            path = folder / reader.__name__ / kind / "class" / name
            path.parent.mkdir(parents=True)
            make(path, whole, draw)
            title = f"{reader.__name__} of a file that is {kind!r}"
            start = time.monotonic()
            try:
                with within_limits(), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    message = reader(path)
            except mg.GraphError as error:
                message = str(error)
                assert message, f"{title}: an empty message"
            except BaseException as error:
                raise AssertionError(f"{title}: {type(error).__name__}: {error}") from error
            assert "\n" not in message and len(message) < 3000, f"{title}: {message!r}"
            named = (
                str(path.parent) in message or "its checksum is not" in message
            )  # which names an entry
            assert named or not message, f"{title} is not named: {message!r}"
            assert kind not in ENDLESS or "no regular file" in message, f"{title}: {message!r}"
            seconds = time.monotonic() - start
            assert seconds < SECONDS / 4, f"{title}: took {seconds:.1f} seconds"
            if path.is_file() and not path.is_symlink():
                path.chmod(0o600)
            counts["files read" if not message else "files refused in a line"] += 1
    return counts
