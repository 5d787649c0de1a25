"""Libraries that data sets need are imported only where they are used."""

import sys

import pytest
from new_process import python

from minigraph.data import (
    Digits,
    ImageFolder,
)
from minigraph.errors import GraphError


def test_importing_the_package_loads_no_optional_library():
    code = (
        "import sys, minigraph.data\n"
        "print([name for name in ('sklearn', 'PIL', 'scipy') if name in sys.modules])"
    )
    assert python("-c", code)[0].strip() == "[]"


@pytest.mark.parametrize(
    "module, make",
    [("sklearn.datasets", Digits), ("PIL.Image", lambda: ImageFolder("."))],
)
def test_an_absent_library_is_an_error_that_says_what_to_install(monkeypatch, module, make):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(GraphError, match=r"pip install minigraph\[data\]"):
        make()
