"""Entries of a store of measurements, and what they are merged to."""

import dataclasses
import json
import sqlite3

from minigraph.cache import Entry, Measurements, environment_of

MACHINE = environment_of({"processor": "one", "library": "3.2.0"})
OTHER = environment_of({"processor": "two", "library": "3.2.0"})


def entry(subject, body="[1]", fields=MACHINE, kind="onednn", blob=b""):
    return Entry(kind, subject, fields, body, blob)


def newer(old, new):
    return new


def both(old, new):
    """Return an entry with the numbers of both."""
    numbers = sorted({*json.loads(old.body), *json.loads(new.body)})
    return dataclasses.replace(new, body=json.dumps(numbers))


def found(store, wanted):
    return store.find([wanted])[0]


def again(store):
    """Return the store as another process has it."""
    return Measurements(store.folder.root)


def change(store, statement, *values):
    """Change the database as somebody else would."""
    db = sqlite3.connect(store.path)
    with db:
        count = db.execute(statement, values).rowcount
    db.close()
    return count
