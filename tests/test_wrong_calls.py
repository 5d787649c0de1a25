"""Calls that cannot be, and their messages: read the diff, then update.

pytest tests/test_wrong_calls.py --update-golden

A file of `tests/wrong_calls` begins with what its calls use.  Each call is a line after ">>> ", and
the next line is the error.
"""

import re
import warnings
from pathlib import Path

import pytest

import minigraph as mg
from minigraph.devices import factory
from minigraph.errors import MAX_MESSAGE

FILES = sorted((Path(__file__).parent / "wrong_calls").glob("*.txt"))
FILE = "calls.py"  # what messages call a file
BEGIN = """
import math
import numpy as np
import minigraph as mg
from minigraph import data, nn, ops, optim
"""
PYTHONS = (AttributeError, TypeError)  # of a name that there is not, or a number of arguments


def message(call, names):
    """Return the error of a call as Python would end with it, without addresses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((mg.GraphError, *PYTHONS)) as caught:
            exec(compile(call, FILE, "exec"), dict(names))
    text = str(caught.value)
    assert "\n" not in text and len(text) <= MAX_MESSAGE, call
    return f"{caught.type.__name__}: {re.sub(r' at 0x[0-9a-f]+', ' at 0x...', text)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_wrong_call_is_the_error_of_one_line_that_the_file_has(
    path, request, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(factory.DEVICES, "toy")  # which is of the tests alone
    text = path.read_text()
    begin, *calls = re.split(r"^>>> ", text, flags=re.M)
    names = {}
    exec(compile(BEGIN + begin, FILE, "exec"), names)
    calls = [call.splitlines()[0] for call in calls]
    session = begin + "".join(f">>> {call}\n{message(call, names)}\n" for call in calls)
    if request.config.getoption("--update-golden"):
        path.write_text(session)
    assert session.splitlines() == path.read_text().splitlines()
    assert not [*tmp_path.iterdir()]
