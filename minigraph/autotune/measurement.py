"""What was measured, where it comes from, and its text in an entry of the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, structs
from msgspec.json import Decoder

from minigraph.cache import Entry, environment_of
from minigraph.platform.records import Record, decode, encode

QUARANTINE = "failed at run time: "  # how the error of a candidate begins that is not tried again
LONGEST = 1e6  # seconds: no run is longer

# Where measurements come from: this process, its store, a file, another process.
MEASURED, STORED, LOADED = "measured", "stored", "loaded file"
RECEIVED = "measured by another process"
PREDICTED = "predicted"  # measuring would not pay
HEURISTIC = "heuristic"  # nothing was measured

Key = tuple[str, tuple[str, ...]]  # of a candidate among those of its problem: name and layouts
Precision = Annotated[str, Meta(pattern=r"^(float64|float32|tf32|bf16x3|float16|bfloat16)\Z")]
Text = Annotated[str, Meta(min_length=1)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=LONGEST)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class KernelRecipe(Record, frozen=True):
    """What makes a candidate's kernel in another process: an engine of a library, with its knobs.

    way  how the problem is put to the library, a word of the device's
    """

    way: str
    engine: Count
    knobs: dict[str, int]


class Measurement(Record, frozen=True):
    """The time of a candidate, or its error; neither if it is the model's choice.

    layouts    of inputs and results, by name
    seconds    that the shortest of its runs took; None if it was not timed
    spread     how far the lower quartile of its runs is above that, as a share of it
    rounds     how many runs were timed, or groups of runs if one is short
    error      why it must not be used, or an empty string
    recipe     the candidate's
    """

    name: Text
    layouts: tuple[Text, ...]
    workspace: Bytes
    deterministic: bool
    precision: Precision
    seconds: Seconds | None = None
    spread: Annotated[float, Meta(ge=0)] = 0.0
    rounds: Count = 0
    error: str = ""
    recipe: KernelRecipe | None = None

    @property
    def key(self) -> Key:
        """What tells it from the others of its table."""
        return self.name, self.layouts

    @property
    def predicted(self) -> bool:
        """Whether it was left to the model of cost."""
        return self.seconds is None and not self.error


class _Body(Record, frozen=True):
    exhaustive: bool
    measurements: tuple[Measurement, ...]


BODY = Decoder(_Body)


@dataclass(frozen=True)
class ProblemTable:
    """The measurements of a problem's candidates, in their order.

    exhaustive  whether all candidates are among them, in all layouts
    origin      where they come from
    """

    subject: str
    measurements: tuple[Measurement, ...]
    exhaustive: bool = True
    origin: str = dataclasses.field(default=STORED, compare=False)

    def with_error(self, which: Measurement, error: str) -> ProblemTable:
        """Return the table with an error in the place of the one that `which` had."""
        replaced = (
            structs.replace(m, error=error) if m.key == which.key else m for m in self.measurements
        )
        return dataclasses.replace(self, measurements=tuple(replaced))

    def merged(self, old: ProblemTable) -> ProblemTable:
        """Return the table with the candidates that only an older one has behind its own.

        What is new replaces what is old, but a candidate that failed at run time stays out.
        """
        before = {m.key: m for m in old.measurements}
        both = [_newer(before.pop(m.key, m), m) for m in self.measurements]
        exhaustive = self.exhaustive or old.exhaustive
        return dataclasses.replace(
            self, measurements=(*both, *before.values()), exhaustive=exhaustive
        )

    def entry(self, kind: str, fields: Mapping[str, str]) -> Entry:
        """Return the entry of the table in an environment."""
        rows = tuple(structs.replace(m, error=_encodable(m.error)) for m in self.measurements)
        body = encode(_Body(self.exhaustive, rows))
        return Entry(kind, self.subject, environment_of(fields), body)


def table(entry: Entry) -> ProblemTable | str:
    """Return the table in an entry, or in words what is odd about it."""
    try:
        body = decode(BODY, entry.body)
    except ValueError as error:
        return str(error)
    for m in body.measurements:
        if m.predicted and m.rounds:
            return f"{m.name[:40]} has neither a time nor an error"
    if len({m.key for m in body.measurements}) < len(body.measurements):
        return "two measurements are of the same candidate"
    return ProblemTable(entry.subject, body.measurements, body.exhaustive)


def merge(old: Entry, new: Entry, read: Callable[[Entry], ProblemTable | str] = table) -> Entry:
    """Return an entry with the candidates of both; one that `read` finds odd counts for nothing."""
    before, after = read(old), read(new)
    if isinstance(before, str):
        return new
    if isinstance(after, str):
        return old
    return after.merged(before).entry(new.kind, dict(new.environment))


def _newer(old: Measurement, new: Measurement) -> Measurement:
    if old.error.startswith(QUARANTINE):
        return structs.replace(new, error=old.error)
    return old if new.predicted else new


def _encodable(text: str) -> str:
    """Return a text without lone surrogates, which an error that names a file may have."""
    return text.encode(errors="backslashreplace").decode()
