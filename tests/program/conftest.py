"""Fixtures of the tests of programs."""

import pytest
from plans import DEVICES


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param
