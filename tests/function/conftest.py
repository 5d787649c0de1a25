"""What the tests of compiled functions share."""

import pytest
from small_functions import DEVICES

import minigraph as mg


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def cg(device):
    return mg.comp_graph(device)
