"""Entries of a cache file."""

import base64
import json

from minigraph.cache import Entry, environment_of

FIELDS = {"fingerprint": "4f" * 20, "graph": "9f2c"}
HERE = {"processor": "x86_64 of some kind", "library": "3.2.0"}


def entry(subject, value=1, kind="onednn", blob=b"", **place):
    body = json.dumps({"values": [value], "seconds": 1e-05, "name": "a ü"})
    return Entry(kind, subject, environment_of({**HERE, **place}), body, blob)


ENTRIES = [
    entry("convolution 3 64", 1),
    entry("convolution 3 64", 2, library="3.2.1"),
    entry("product", 3, kind="cudnn"),
    entry("unit 1", 4, kind="jit", blob=bytes(range(256)) * 4),
    entry("unit 2", 5, kind="jit", blob=b"\x7fELF"),
    Entry("onednn", "a list", environment_of(HERE), json.dumps([{"seconds": 0.1}, None])),
    entry("a name with \n \x00 and ü", 6),
]


def never(old, new):
    raise AssertionError("there is nothing to merge")


def by_key(entries):
    return sorted(entries, key=lambda e: e.key)


def change(saved, number, **parts):
    """Put other parts into a line; without a checksum, with the one that fits them."""
    lines = saved.read_text().splitlines()
    value = {**json.loads(lines[number]), **parts}
    if "checksum" not in parts:
        place, body = environment_of(value["environment"]), json.dumps(value["body"])
        blob = base64.b64decode(value["blob"])
        value["checksum"] = Entry(value["kind"], value["subject"], place, body, blob).checksum
    lines[number] = json.dumps(value)
    saved.write_text("\n".join(lines) + "\n")
