"""Which of the candidates is used, measured or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigraph.autotune.candidate import Candidate
from minigraph.autotune.measurement import Measurement
from minigraph.errors import GraphError

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


def first_allowed(candidates: Iterable[Candidate], policy: Policy) -> Any:
    """Return the kernel of the first candidate that can be made and that the policy allows.

    If none keeps the limit on its workspace, the limit does not count.  None: there is no other.
    """
    over_limit = None
    for candidate in candidates:
        try:
            kernel = candidate.kernel
        except GraphError:  # described, but the library cannot make it
            continue
        facts = candidate.measurement(kernel.scratch)
        if not policy.allows(facts):
            return kernel
        if not policy.unlimited.allows(facts):
            over_limit = over_limit or kernel
    return over_limit


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
