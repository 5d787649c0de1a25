"""The command line, as a user runs it, and a cache folder for it."""

import contextlib
import io
import json

from new_process import python

from minigraph import cli
from minigraph.cache import Entry, Store, environment_of

HERE = environment_of({"oneDNN": "3.2.0", "processor": "x86_64 of some kind"})
UNIT = bytes(range(256)) * 20
MEASURED = [Entry("onednn", "convolution 3 64", HERE, "[]"), Entry("cudnn", "product", HERE, "[]")]
KERNELS = [Entry("jit", name, HERE, "{}", UNIT) for name in ("mg_one", "mg_two")]


def unused(old, new):
    raise AssertionError("there is nothing to merge")


def fill(folder, monkeypatch):
    """Let a folder be the cache folder, with an entry of each kind, and return it."""
    monkeypatch.setenv("MINIGRAPH_CACHE_DIR", str(folder))
    assert Store(folder).keep([*MEASURED, *KERNELS], unused)
    return folder


def process(*arguments, status=0, **environment):
    """Run a command in a process of its own, as a user does; return what `run` does."""
    return python("-m", "minigraph", *arguments, status=status, **environment)


def run(*arguments, status=0):
    """Run a command and return what it prints, and what it says of what went wrong."""
    printed, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
        try:
            ended = cli.main([*map(str, arguments)])
        except SystemExit as stopped:
            ended = stopped.code
    assert ended == status, errors.getvalue()
    return printed.getvalue(), errors.getvalue()


def answer(*arguments, status=0):
    """Return the JSON of a command that finds nothing to complain of."""
    printed, errors = run(*arguments, "--json", status=status)
    assert not errors
    return json.loads(printed)
