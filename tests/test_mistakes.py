"""The messages of typical mistakes, as golden text: read the diff, then update.

pytest tests/test_mistakes.py --update-golden
"""

import re
from pathlib import Path

import mistakes
import pytest

import minigraph as mg
from minigraph.devices import factory

GOLDEN = Path(__file__).parent / "golden" / "errors.txt"


@pytest.fixture(scope="module")
def text():
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(factory.DEVICES, "toy")  # which is of the tests alone
        return mistakes.text()


def test_messages_are_those_of_the_golden_file(text, request):
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_every_mistake_is_an_error_of_one_line(text):
    messages = mistakes.golden(text)
    assert len(messages) == len(mistakes.programs()) >= 60
    ours = {name for name in dir(mg) if name.endswith("Error")} | {"AttributeError", "TypeError"}
    for program, message in messages.items():
        kind, _, rest = message.partition(": ")
        assert kind in ours and rest, program
        assert "tests/" not in message and "minigraph/" not in message, program


@pytest.mark.parametrize("subject", ["Shapes", "Losses and gradients"])
def test_what_builds_a_graph_names_the_line(text, subject):
    messages = mistakes.golden(text)
    for about, program in mistakes.programs():
        if about == subject and program.startswith(("ops.", "mg.grad", "images[")):
            assert re.search(r" at train\.py:\d+$", messages[program]), program
