"""Which of the measured candidates is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minigraph.autotune.candidate import Candidate, Runner
from minigraph.autotune.measurement import Measurement
from minigraph.errors import GraphError

NOISE = 0.03  # two measurements of a kernel on a quiet machine differ by about this much
DOUBT = 0.5  # however much the times of a busy machine spread, twice as fast is faster


@dataclass(frozen=True)
class Policy:
    """What a candidate may be.  Applied to what was measured, so another policy measures nothing.

    workspace_limit  bytes, or None
    deterministic    whether it has to give the same bits every run
    precision        the lowest that it may compute in: "float32" or "tf32"
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
        if measurement.precision == "tf32" and self.precision != "tf32":
            return "precision tf32"
        return ""


def first_allowed(candidates: Iterable[Candidate], policy: Policy) -> Runner | None:
    """Return the kernel of the first candidate that can be made and that the policy allows.

    If none keeps the limit on its workspace, the limit does not count.
    """
    beyond: Runner | None = None
    for candidate in candidates:
        try:
            kernel = candidate.make()
        except GraphError:  # described, but not to be had
            continue
        facts = candidate.measurement(kernel.scratch)
        if not policy.allows(facts):
            return kernel
        if not policy.unlimited.allows(facts):
            beyond = beyond or kernel
    return beyond


def choose(measurements: Sequence[Measurement], policy: Policy) -> Measurement | None:
    """Return the measurement of the candidate to use; None if the policy allows none.

    The first one allowed stays unless a later one is clearly faster, and so on with that one.
    Clearly: by more than 3 % and by more than the spread of either, and in any case by half.  Less
    may be noise, and a choice made of noise is another one after the next measurement.
    """
    best: Measurement | None = None
    for new in measurements:
        if policy.allows(new) or new.seconds is None:
            continue
        if best is None or best.seconds is None:
            best = new
            continue
        margin = min(max(NOISE, best.spread, new.spread), DOUBT)
        if new.seconds < best.seconds * (1 - margin):
            best = new
    return best
