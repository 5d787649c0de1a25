"""Texts from anywhere as records: what is odd is said, and nothing else is raised."""

import json
import random
from typing import Annotated

import pytest
from msgspec import Meta, Raw
from msgspec.json import Decoder

from minigraph.platform.records import MAX_REASON_LENGTH, Record, decode, encode


class Inner(Record, frozen=True):
    names: tuple[str, ...]
    numbers: dict[str, float]


class Outer(Record, frozen=True):
    count: Annotated[int, Meta(ge=0, le=9)]
    inner: Inner
    raw: Raw = Raw(b"null")


OUTER = Decoder(Outer)
GOOD = {"count": 1, "inner": {"names": ["a", "ü"], "numbers": {"x": 0.5}}}


def reason(text):
    """Return the error of a malformed text, which is one line."""
    with pytest.raises(ValueError) as raised:
        decode(OUTER, text)
    why = str(raised.value)
    assert type(raised.value) is ValueError
    assert why.startswith("is ") and why.isprintable() and len(why) < 2 * MAX_REASON_LENGTH
    return why


def test_what_was_written_is_what_is_read():
    text = json.dumps(GOOD, ensure_ascii=False)
    whole = decode(OUTER, text)
    assert whole == Outer(1, Inner(("a", "ü"), {"x": 0.5}))
    assert encode(whole) == text.removesuffix("}") + ', "raw": null}'
    assert decode(OUTER, encode(whole, indent=1).encode()) == whole


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"count": -1}', "is wrong at count: Expected `int` >= 0"),
        ('{"count": 10}', "is wrong at count: Expected `int` <= 9"),
        ('{"count": 1.0}', "is wrong at count: Expected `int`, got `float`"),
        ('{"count": true}', "is wrong at count: Expected `int`, got `bool`"),
        ('{"count": "1"}', "is wrong at count: Expected `int`, got `str`"),
        ('{"count": 1}', "is wrong: Object missing required field `inner`"),
        ('{"inner": {"names": [1]}}', "is wrong at inner.names[0]: Expected `str`, got `int`"),
        ('{"inner": {"numbers": {"x": null}}}', "is wrong at inner.numbers[...]: Expected `float`"),
        ('{"inner": {"numbers": {"x": 1e999}}}', "is wrong at inner.numbers[...]: Number out of"),
        ('{"inner": {"numbers": {"x": NaN}}}', "is cut off, or no JSON: "),
        ('{"more": 1}', "is wrong: Object contains unknown field `more`"),
        ('{"\\u001b[2J\\n": 1}', "is wrong: Object contains unknown field `?[2J `"),
        (f'{{"{"x" * 9999}": 1}}', "is wrong: Object contains unknown field `xxx"),
        ("[]", "is wrong: Expected `object`, got `array`"),
        ("", "is cut off, or no JSON: "),
        ('{"count": 1', "is cut off, or no JSON: "),
        (b'{"count": "\xff"}', "is damaged: it is no text"),
        ('{"raw": ' + "[" * 100_000, "is nested too deeply"),
        ('{"count": ' + "9" * 10_000 + "}", "is wrong at count: Integer value out of range"),
    ],
)
def test_a_malformed_text_raises_its_reason(text, why):
    assert reason(text).startswith(why)


def test_no_change_of_a_good_text_raises_anything_else():
    rng = random.Random(0)
    good, read = json.dumps({**GOOD, "raw": [1, {"a": "b"}]}).encode(), 0
    for _ in range(3000):
        text = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        try:
            decode(OUTER, bytes(text))
            read += 1
        except ValueError:
            reason(bytes(text))
    assert 10 < read < 1000
