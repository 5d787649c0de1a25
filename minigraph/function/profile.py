"""How long each kernel of a function took."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class KernelTime:
    """One kernel: op, what computed it, its result, the user's line, start and time in seconds."""

    name: str
    kernel: str
    result: str
    line: str
    start: float
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The kernels of one call, in order; `print` it for a table by op and kernel."""

    kernels: list[KernelTime]

    @property
    def seconds(self) -> float:
        """All kernels together."""
        return sum(k.seconds for k in self.kernels)

    def __str__(self) -> str:
        rows: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for k in self.kernels:
            rows[k.name, k.kernel].append(k.seconds)
        total = self.seconds or 1.0
        lines = [f"{'op':26} {'kernel':34} {'calls':>6} {'ms':>9} {'share':>6}"]
        for (name, kernel), times in sorted(rows.items(), key=lambda row: -sum(row[1])):
            spent = sum(times)
            lines.append(
                f"{name:26} {kernel:34} {len(times):6} {1e3 * spent:9.3f} {spent / total:6.1%}"
            )
        lines.append(f"{'all':26} {'':34} {len(self.kernels):6} {1e3 * self.seconds:9.3f}")
        return "\n".join(lines)

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the kernels as a trace that chrome://tracing and Perfetto show."""
        events = [
            {
                "name": k.name,
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": 1e6 * k.start,
                "dur": 1e6 * k.seconds,
                "args": asdict(k),
            }
            for k in self.kernels
        ]
        Path(path).write_text(json.dumps({"traceEvents": events}))
