"""Records: typed values, and their JSON text.

Texts come from untrusted files.  A record's class declares the type of each field, and `decode`
checks them all.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

T = TypeVar("T")

MAX_REASON_LENGTH = 200  # characters


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fields with types; a field that the class does not name is an error."""


def decode(decoder: Decoder[T], text: str | bytes) -> T:
    """Return the value in a JSON text.

    Raises ValueError for a value of another type, with a line that begins with "is" and names the
    wrong part.  If an object has two values with the same name, the last is used; to exclude that,
    compare the text with that of `encode`.
    """
    try:
        return decoder.decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        raise ValueError("is damaged: it is no text") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise ValueError(_reason(error)) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"is cut off, or no JSON: {error}") from None


def encode(value: Any, indent: int = 0) -> str:
    """Return a record, or a value made of records and JSON's types, as JSON.

    indent  spaces; 0 is one line
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=indent).decode()


def _reason(error: msgspec.ValidationError) -> str:
    """Return the fault in one printable line: names in it may come from an untrusted file."""
    fault, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    text = one_line(f"is wrong at {path}: {fault}" if path else f"is wrong: {fault}")
    return text[:MAX_REASON_LENGTH]


def one_line(text: str) -> str:
    """Return a text, which may come from a file or a library, as one printable line."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
