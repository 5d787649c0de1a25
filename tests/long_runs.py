"""Which part of a long run the short suite does: the rest has the marker `long`."""

import pytest


def long(value):
    """Return a parameter of the long runs only."""
    return pytest.param(value, marks=pytest.mark.long)


def mostly_long(values, short):
    """Return parameters: as many first `values` as `short` says run always."""
    return [value if i < short else long(value) for i, value in enumerate(values)]


# NVRTC compiles the same text for each.
ARCHITECTURES = mostly_long(["sm_90", "sm_80", "sm_100"], 1)
