"""What was measured, and its text in an entry of the store."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from minigraph.cache import Entry, environment_of

QUARANTINE = "failed at run time: "  # how the error of a candidate begins that is not tried again


Key = tuple[str, tuple[str, ...]]  # of a candidate among those of its problem: name and layouts


@dataclass(frozen=True)
class Measurement:
    """What is known of a candidate.

    workspace  bytes
    seconds    the median of its runs; None if it was not timed
    spread     the range of the middle half of its runs, divided by the median
    rounds     how many runs were timed, or groups of runs if one is short
    error      why it must not be used, or an empty string
    recipe     the candidate's
    """

    name: str
    layouts: tuple[str, ...]
    workspace: int
    deterministic: bool
    precision: str
    seconds: float | None = None
    spread: float = 0.0
    rounds: int = 0
    error: str = ""
    recipe: Mapping[str, Any] | None = None

    @property
    def key(self) -> Key:
        """What tells it from the others of its table."""
        return self.name, self.layouts


@dataclass(frozen=True)
class ProblemTable:
    """The measurements of a problem's candidates, in their order.

    makers  what makes the kernels of candidates that were measured in this process, by their keys
    """

    subject: str
    measurements: tuple[Measurement, ...]
    makers: Mapping[Key, Callable[[], Any]] = field(default_factory=dict, compare=False)

    def with_error(self, which: Measurement, error: str) -> ProblemTable:
        """Return the table with an error in the place of the one that `which` had."""
        replaced = (
            dataclasses.replace(m, error=error) if m.key == which.key else m
            for m in self.measurements
        )
        return dataclasses.replace(self, measurements=tuple(replaced))

    def entry(self, kind: str, fields: Mapping[str, str]) -> Entry:
        """Return what is kept of the table in an environment."""
        body = json.dumps([vars(m) for m in self.measurements], allow_nan=False)
        return Entry(kind, self.subject, environment_of(fields), body)


def table(entry: Entry) -> ProblemTable | str:
    """Return the table in an entry, or in words what is odd about it."""
    try:
        rows = json.loads(entry.body, parse_constant=_no_number)
        measurements = tuple(_measurement(row) for row in _sequence(rows))
    except (ValueError, RecursionError) as error:
        return str(error)
    if len({m.key for m in measurements}) < len(measurements):
        return "two measurements are of the same candidate"
    return ProblemTable(entry.subject, measurements)


def merge(old: Entry, new: Entry) -> Entry:
    """Return an entry with the candidates of both, in the order of the new one.

    What is new replaces what is old, but a candidate that failed at run time stays out.
    """
    before, after = table(old), table(new)
    if isinstance(before, str):
        return new
    if isinstance(after, str):
        return old
    known = {m.key: m for m in before.measurements}
    both = [_newer(known.pop(m.key, m), m) for m in after.measurements] + list(known.values())
    merged = ProblemTable(new.subject, tuple(both))
    return merged.entry(new.kind, dict(new.environment))


def _newer(old: Measurement, new: Measurement) -> Measurement:
    failed = old.error.startswith(QUARANTINE)
    return dataclasses.replace(new, error=old.error) if failed else new


def _measurement(row: Any) -> Measurement:
    """Return the measurement that a value of JSON stands for; ValueError if it is odd."""
    if not isinstance(row, dict) or set(row) != CHECKS.keys():
        raise ValueError(f"a measurement is not made of {', '.join(CHECKS)}")
    for name, fits in CHECKS.items():
        if not fits(row[name]):
            raise ValueError(f"{name} is {row[name]!r}"[:80])
    found = Measurement(**{**row, "layouts": tuple(row["layouts"])})
    if found.seconds is None and not found.error:
        raise ValueError(f"{found.name} has neither a time nor an error"[:80])
    return found


def _sequence(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("it is no list of measurements")
    return value


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and 0 <= value < math.inf  # an overflow is read as infinity


def _is_recipe(value: Any) -> bool:
    return value is None or isinstance(value, dict)


CHECKS = {
    "name": _is_text,
    "layouts": _is_texts,
    "workspace": _is_count,
    "deterministic": _is_flag,
    "precision": _is_text,
    "seconds": lambda value: value is None or _is_number(value),
    "spread": _is_number,
    "rounds": _is_count,
    "error": _is_text,
    "recipe": _is_recipe,
}
