"""What a pass tells of its work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Notes:
    """Filled in by one run of one pass.

    fired  how often each rewrite was applied, by name
    """

    fired: Counter[str] = field(default_factory=Counter)
