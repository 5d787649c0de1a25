"""What the tests of programs share."""

import pytest
from plans import DEVICES


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param
