"""The part of a long run that the short suite runs: the rest has the marker `long`."""

import pytest

# NVRTC compiles the same text for each.
ARCHITECTURES = ["sm_90", "sm_80", "sm_100"]


def long(*values):
    """Return a parameter, or several, of the long runs only."""
    return pytest.param(*values, marks=pytest.mark.long)


def mostly_long(values, short):
    """Return parameters: as many first `values` as `short` says run always."""
    return [value if i < short else long(value) for i, value in enumerate(values)]
