"""What was measured, its text in an entry of the store, and which candidate it lets one use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

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
        rows = self.measurements
        replaced = [structs.replace(m, error=error) if m.key == which.key else m for m in rows]
        return dataclasses.replace(self, measurements=tuple(replaced))

    def merged(self, old: ProblemTable) -> ProblemTable:
        """Return the table with the candidates that only an older one has behind its own.

        What is new replaces what is old, but a candidate that failed at run time stays out.
        """
        before = {m.key: m for m in old.measurements}
        rows = [_newer(before.pop(m.key, m), m) for m in self.measurements]
        rows += before.values()
        whole = self.exhaustive or old.exhaustive
        return dataclasses.replace(self, measurements=tuple(rows), exhaustive=whole)

    def entry(self, kind: str, fields: Mapping[str, str]) -> Entry:
        """Return the entry of the table in an environment."""
        # An error that names a file may have lone surrogates.
        errors = (m.error.encode(errors="backslashreplace").decode() for m in self.measurements)
        pairs = zip(self.measurements, errors, strict=True)
        rows = tuple(structs.replace(m, error=error) for m, error in pairs)
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


# ---------------------------------------------------------------- what is chosen

LESS_EXACT = ("tf32", "bf16x3")  # ways to compute in float32
NOISE = 0.03  # two measurements of a kernel on a quiet machine differ by about this much
DOUBT = 0.5  # however much the times of a busy machine spread, twice as fast is faster


@dataclass(frozen=True)
class Policy:
    """What a candidate may be.  It is applied to measurements, so another one measures nothing.

    workspace_limit  bytes, or None
    deterministic    whether it has to give the same bits every run
    precision        the lowest that it may compute in: "float32", "tf32" or "bf16x3"
    """

    workspace_limit: int | None = None
    deterministic: bool = False
    precision: str = "float32"

    @property
    def unlimited(self) -> Policy:
        """The same without a limit on the workspace."""
        return dataclasses.replace(self, workspace_limit=None)

    def allows(self, measurement: Measurement) -> str:
        """Return why a candidate is not used, or an empty string."""
        if measurement.error:
            return measurement.error
        limit = self.workspace_limit
        if limit is not None and measurement.workspace > limit:
            return f"needs {measurement.workspace} bytes of workspace, the limit is {limit}"
        if self.deterministic and not measurement.deterministic:
            return "not deterministic"
        if measurement.precision in LESS_EXACT and measurement.precision != self.precision:
            return f"precision {measurement.precision}"
        return ""


def choose(measurements: Sequence[Measurement], policy: Policy) -> Measurement | None:
    """Return the measurement of the candidate to use; None if the policy allows none.

    The first one allowed stays unless a later one is clearly faster, and so on with that one.
    Clearly: by more than 3 % and by more than the spread of either, and in any case by half.  Less
    may be noise, and a choice made of noise is another one after the next measurement.  What the
    model chose counts where nothing is timed.
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
        margin = min(max(NOISE, best.spread, new.spread), DOUBT)
        if new.seconds < best.seconds * (1 - margin):
            best = new
    return best


def choose_by_layouts(
    measurements: Iterable[Measurement], policy: Policy
) -> dict[tuple[str, ...], Measurement]:
    """Return the measurement of the candidate to use by layouts, where the policy allows one."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.layouts, []).append(measurement)
    best = {layouts: choose(group, policy) for layouts, group in groups.items()}
    return {layouts: m for layouts, m in best.items() if m}


def policy_of(values: Mapping[str, Any]) -> Policy:
    """Return what options say of algorithms."""
    return Policy(
        values["autotune.workspace_limit"], values["autotune.deterministic"], values["precision"]
    )
