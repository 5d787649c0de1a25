"""What a pass tells of its work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from minigraph.report import Stop


@dataclass
class Notes:
    """Filled in by one run of one pass.

    fired  how often each rewrite was applied, by name
    stops  neighbours that were not fused, and why
    """

    fired: Counter[str] = field(default_factory=Counter)
    stops: list[Stop] = field(default_factory=list)
