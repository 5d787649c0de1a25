"""What was chosen for a node, and what else there was."""

from __future__ import annotations

from dataclasses import dataclass

from minigraph.autotune.measurement import Measurement


@dataclass(frozen=True)
class Algorithm:
    """What computes a convolution or product, and what else there was.

    result      the spec of its result
    line        the user's
    subject     what was measured, in words
    name        of the algorithm
    layout      of each input, then of the result
    seconds     that it took when it was measured; None if it was not
    workspace   bytes; None if it is not known
    origin      "measured" now, "stored", "loaded file", or "heuristic"
    candidates  all that were measured, in every layout
    """

    op: str
    result: str
    line: str
    subject: str
    name: str
    layout: str
    seconds: float | None
    workspace: int | None
    origin: str
    candidates: list[Measurement]

    def __str__(self) -> str:
        taken = "" if self.seconds is None else f", {self.seconds * 1e3:.2f} ms"
        of = f" of {len(self.candidates)}" if self.candidates else ""
        return f"{self.op} {self.result}: {self.name} in {self.layout} ({self.origin}{of}{taken})"
