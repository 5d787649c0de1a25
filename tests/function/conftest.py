"""What the tests of compiled functions share."""

import pytest
from small_functions import DEVICES

import minigraph as mg


@pytest.fixture(params=DEVICES)
def cg(request):
    return mg.comp_graph(request.param)
