"""What the tests of programs share."""

import pytest
from random_functions import DEVICES


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param
