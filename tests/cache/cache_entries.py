"""Entries of a cache, and functions that merge them."""

import dataclasses
import json
import sqlite3

from minigraph.cache import Entry, Store, environment_of

MACHINE = environment_of({"processor": "one", "library": "3.2.0"})
OTHER = environment_of({"processor": "two", "library": "3.2.0"})
FIELDS = {"fingerprint": "4f" * 20, "graph": "9f2c"}
UNIT = bytes(range(256)) * 40


def entry(subject, body="[1]", fields=MACHINE, kind="onednn", blob=b""):
    return Entry(kind, subject, fields, body, blob)


def kernel(name, blob=UNIT):
    return entry(name, '{"text": "7e"}', kind="jit", blob=blob)


ENTRIES = [
    entry("convolution 3 64", '[{"seconds": 1e-05, "name": "a ü"}]'),
    entry("convolution 3 64", "[2]", OTHER),
    entry("product", "[3]", kind="cudnn"),
    entry("a name with \n \x00 and ü", " [4]"),
    kernel("mg_one"),
    kernel("mg_two"),
    kernel("mg_three", b"\x7fELF"),
]


def never(old, new):
    raise AssertionError("there is nothing to merge")


def newer(old, new):
    return new


def both(old, new):
    """Return an entry with the numbers of both."""
    numbers = sorted({*json.loads(old.body), *json.loads(new.body)})
    return dataclasses.replace(new, body=json.dumps(numbers))


def found(store, expected):
    return store.find([expected])[0]


def again(store):
    """Return the store as another process has it."""
    return Store(store.root)


def change(path, statement, *values):
    """Change a database as somebody else would; return how many rows were changed."""
    db = sqlite3.connect(path)
    with db:
        count = db.execute(statement, values).rowcount
    db.close()
    return count


def by_key(entries):
    return sorted(entries, key=lambda e: e.key)
