"""Tables of measurements, their entries in the store, and the choice of a candidate by policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, structs
from msgspec.json import Decoder

from minigraph.cache import Entry, environment_of
from minigraph.platform.records import Record, decode, encode

# The beginning of the error of a candidate that no process tries again.
QUARANTINE_PREFIX = "failed at run time: "
MAX_SECONDS = 1e6  # seconds of a run

# The origin of measurements: this process, its store, a file, another process.
MEASURED, STORED, LOADED = "measured", "stored", "loaded file"
RECEIVED = "measured by another process"
PREDICTED = "predicted"  # by the cost model, as measuring would not pay
HEURISTIC = "heuristic"  # without measurements

Key = tuple[str, tuple[str, ...]]  # of a candidate in its problem: name and layouts
Precision = Annotated[str, Meta(pattern=r"^(float64|float32|tf32|bf16x3|float16|bfloat16)\Z")]
Text = Annotated[str, Meta(min_length=1)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 62)]
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class KernelRecipe(Record, frozen=True):
    """An engine of a library with its knobs, from which another process makes the same kernel.

    way  the device's name for the form in which the library gets the problem
    """

    way: str
    engine: Count
    knobs: dict[str, int]


class Measurement(Record, frozen=True):
    """The time of a candidate, or its error; neither if the cost model chose it.

    layouts  names of the layouts of inputs and results
    seconds  of the shortest run; None if the candidate was not timed
    spread   lower quartile of the runs / shortest run - 1
    rounds   number of timed runs, or of groups of short runs
    error    why the candidate must not be used; "" if it may be used
    recipe   recipe of the candidate
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
        """The name and layouts, which are unique in a table."""
        return self.name, self.layouts

    @property
    def predicted(self) -> bool:
        """Whether the cost model chose the candidate without measuring."""
        return self.seconds is None and not self.error


class _Body(Record, frozen=True):
    exhaustive: bool
    measurements: tuple[Measurement, ...]


BODY_DECODER = Decoder(_Body)


@dataclass(frozen=True)
class ProblemTable:
    """The measurements of a problem's candidates, the heuristic's choice first.

    exhaustive  whether the table has all candidates in all layouts
    origin      MEASURED, STORED, LOADED, RECEIVED or PREDICTED
    """

    subject: str
    measurements: tuple[Measurement, ...]
    exhaustive: bool = True
    origin: str = dataclasses.field(default=STORED, compare=False)

    def with_error(self, failed: Measurement, error: str) -> ProblemTable:
        """Return the table with an error for the candidate that `failed` measured."""
        rows = self.measurements
        replaced = [structs.replace(m, error=error) if m.key == failed.key else m for m in rows]
        return dataclasses.replace(self, measurements=tuple(replaced))

    def merged(self, old: ProblemTable) -> ProblemTable:
        """Return the table with further candidates of an older table appended.

        A new measurement replaces the old one, unless the candidate is quarantined.
        """
        remaining = {m.key: m for m in old.measurements}
        rows = [_newer(remaining.pop(m.key, m), m) for m in self.measurements]
        rows += remaining.values()
        exhaustive = self.exhaustive or old.exhaustive
        return dataclasses.replace(self, measurements=tuple(rows), exhaustive=exhaustive)

    def entry(self, kind: str, fields: Mapping[str, str]) -> Entry:
        """Return the store's entry for the table in an environment."""
        # An error with the name of a file may have lone surrogates.
        errors = (m.error.encode(errors="backslashreplace").decode() for m in self.measurements)
        pairs = zip(self.measurements, errors, strict=True)
        rows = tuple(structs.replace(m, error=error) for m, error in pairs)
        body = encode(_Body(self.exhaustive, rows))
        return Entry(kind, self.subject, environment_of(fields), body)


def table(entry: Entry) -> ProblemTable | str:
    """Return the table in an entry, or why the entry is invalid."""
    try:
        body = decode(BODY_DECODER, entry.body)
    except ValueError as error:
        return str(error)
    for m in body.measurements:
        if m.predicted and m.rounds:
            return f"{m.name[:40]} has neither a time nor an error"
    if len({m.key for m in body.measurements}) < len(body.measurements):
        return "two measurements are of the same candidate"
    return ProblemTable(entry.subject, body.measurements, body.exhaustive)


def merge(old: Entry, new: Entry, read: Callable[[Entry], ProblemTable | str] = table) -> Entry:
    """Return an entry with the candidates of both; ignore one that `read` finds invalid."""
    before, after = read(old), read(new)
    if isinstance(before, str):
        return new
    if isinstance(after, str):
        return old
    return after.merged(before).entry(new.kind, dict(new.environment))


def _newer(old: Measurement, new: Measurement) -> Measurement:
    if old.error.startswith(QUARANTINE_PREFIX):
        return structs.replace(new, error=old.error)
    return old if new.predicted else new


# ---------------------------------------------------------------- policy and choice

REDUCED_PRECISIONS = ("tf32", "bf16x3")  # precisions of float32 products that an option must allow
MIN_MARGIN = 0.03  # relative difference of two measurements of a kernel on a quiet machine
MAX_MARGIN = 0.5  # the largest margin: a candidate that is twice as fast wins despite any spread


@dataclass(frozen=True)
class Policy:
    """Conditions on a candidate; they apply at lookup, so a new policy needs no new measurements.

    workspace_limit  bytes, or None
    deterministic    whether every run has to give the same bits
    precision        the lowest allowed: "float32", "tf32" or "bf16x3"
    """

    workspace_limit: int | None = None
    deterministic: bool = False
    precision: str = "float32"

    @property
    def unlimited(self) -> Policy:
        """The policy without a limit on the workspace."""
        return dataclasses.replace(self, workspace_limit=None)

    def allows(self, measurement: Measurement) -> str:
        """Return why the policy forbids a candidate; "" if it allows the candidate."""
        if measurement.error:
            return measurement.error
        limit = self.workspace_limit
        if limit is not None and measurement.workspace > limit:
            return f"needs {measurement.workspace} bytes of workspace, the limit is {limit}"
        if self.deterministic and not measurement.deterministic:
            return "not deterministic"
        if measurement.precision in REDUCED_PRECISIONS and measurement.precision != self.precision:
            return f"precision {measurement.precision}"
        return ""


def choose(measurements: Sequence[Measurement], policy: Policy) -> Measurement | None:
    """Return the measurement of the candidate to use; None if the policy forbids all.

    A later candidate replaces an earlier one only if it is faster by more than a margin: 3 % or the
    larger spread of the two, but at most half.  A smaller difference may be noise, and the choice
    would change with the next measurement.  A candidate without a time is used if none has a time.
    """
    best: Measurement | None = None
    for new in measurements:
        if policy.allows(new):
            continue
        if best is None or best.seconds is None:
            best = new if best is None or new.seconds is not None else best
            continue
        if new.seconds is None:
            continue
        margin = min(max(MIN_MARGIN, best.spread, new.spread), MAX_MARGIN)
        if new.seconds < best.seconds * (1 - margin):
            best = new
    return best


def choose_by_layouts(
    measurements: Iterable[Measurement], policy: Policy
) -> dict[tuple[str, ...], Measurement]:
    """Return the measurement of the candidate to use in each layout with an allowed candidate."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.layouts, []).append(measurement)
    best = {layouts: choose(group, policy) for layouts, group in groups.items()}
    return {layouts: m for layouts, m in best.items() if m}


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return the policy that the options set."""
    return Policy(
        values["autotune.workspace_limit"], values["autotune.deterministic"], values["precision"]
    )
