"""What the tests of kernels for the CPU share."""

import pytest
from msgspec import structs

from minigraph.devices.problem import WEIGHTS
from minigraph.program import choices


@pytest.fixture
def prefer(monkeypatch):
    """A function that lets an algorithm be chosen wherever it has been measured and was right."""

    def prefer(name):
        def choose(measurements, policy):
            found = [m for m in measurements if m.name == name and not m.error]
            if found:
                return structs.replace(found[0], seconds=1e-9)
            chosen = real(measurements, policy)
            slow = chosen is not None and WEIGHTS in chosen.layouts
            return structs.replace(chosen, seconds=1.0) if slow else chosen

        monkeypatch.setattr(choices, "choose", choose)

    real = choices.choose
    return prefer
