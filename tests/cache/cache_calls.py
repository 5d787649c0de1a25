"""Helpers for the tests of a user's cache files and folders."""

import contextlib

import pytest
from small_network import graph_compiler, network

import minigraph as mg
from minigraph.cache import file


def entries(path, kind=None):
    """Return the entries of a file, all of which are good, or those of a kind."""
    contents = file.read(path)
    assert contents.rejected == []
    return [entry for entry in contents.entries if kind in (None, entry.kind)]


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
    with pytest.warns(mg.MinigraphWarning, match=match) as warnings:
        yield
    assert len(warnings) == 1
    assert "\n" not in str(warnings[0].message)
