"""What the tests of a user's cache files and folders ask of files and functions."""

import contextlib
import json

import pytest
from small_network import graph_compiler, network

import minigraph as mg


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def loaded(path, type="all"):
    """Return a graph compiler that has loaded a file, and the result."""
    cg = graph_compiler()
    return cg, cg.load_cache(path, type)


def compile_with(cg):
    net = network()
    return cg.compile(net.inputs, net.loss, updates=net.updates)


@contextlib.contextmanager
def warned_once(match):
    """Check that there is one warning inside, of one line."""
    with pytest.warns(mg.MinigraphWarning, match=match) as found:
        yield
    assert len(found) == 1
    assert "\n" not in str(found[0].message)
