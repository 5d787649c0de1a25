"""The differences between two functions, such as two levels, or before and after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from minigraph.inspect.record import Description

MAX_LAYERS = 12  # layers in the comparison of times: those that changed most
MAX_OPS = 6  # ops in the name of a kernel
MIB = 1 << 20


class ChangedValue(NamedTuple):
    """A difference: its subject, its name, and its value in each function."""

    subject: str
    what: str
    before: str
    after: str


def differences(a: Description, b: Description) -> list[ChangedValue]:
    """Return the differences of two functions, by subject."""
    subjects = {
        "options": (_options(a), _options(b)),
        "passes": (_passes(a), _passes(b)),
        "steps": (_steps(a), _steps(b)),
        "kernels": (_kernels(a), _kernels(b)),
        "algorithms": (_algorithms(a), _algorithms(b)),
        "memory": (_memory(a), _memory(b)),
    }
    different = [
        ChangedValue(subject, what, before.get(what, "none"), after.get(what, "none"))
        for subject, (before, after) in subjects.items()
        for what in dict.fromkeys((*before, *after))
        if before.get(what) != after.get(what)
    ]
    return [*different, *_times(a, b)]


def _options(d: Description) -> dict[str, str]:
    return {"device": d.device, **{name: repr(value) for name, value in d.options.items()}}


def _passes(d: Description) -> dict[str, str]:
    """Return the changes by each pass; repeated passes are numbered from the second run on."""
    runs: Counter[str] = Counter()
    effects = {}
    for record in d.passes:
        runs[record.name] += 1
        number = f" ({runs[record.name]})" if runs[record.name] > 1 else ""
        fired = ", ".join(f"{name} {n}" for name, n in record.fired.items())
        effects[record.name + number] = f"{record.after} nodes" + (f" ({fired})" if fired else "")
    return effects


def _counts(names: Mapping[str, int]) -> dict[str, str]:
    return {name: str(n) for name, n in sorted(names.items(), key=lambda item: -item[1])}


def _steps(d: Description) -> dict[str, str]:
    makers = Counter(f"by {step.maker}" for step in d.steps)
    ops = Counter(step.name for step in d.steps)
    return {"all": str(len(d.steps)), **_counts(makers), **_counts(ops)}


def _kernels(d: Description) -> dict[str, str]:
    """Return the number of generated kernels by their ops."""
    names = (k.ops for k in d.kernels)
    return _counts(Counter(f"{', '.join(ops[:MAX_OPS])} ({len(ops)})" for ops in names))


def _algorithms(d: Description) -> dict[str, str]:
    """Return the algorithm of each problem, by the problem and the layouts of its images."""
    by_subject: dict[str, set[str]] = {}
    for a in d.algorithms:
        seconds = "" if a.seconds is None else f", {1e3 * a.seconds:.3g} ms"
        by_subject.setdefault(a.subject, set()).add(f"{a.name} in {a.layout}{seconds}")
    return {subject: "; ".join(sorted(texts)) for subject, texts in by_subject.items()}


def _memory(d: Description) -> dict[str, str]:
    spaces: Counter[str] = Counter()
    for buffer in d.buffers:
        spaces[buffer.space] += buffer.bytes
    traffic = sum(step.bytes for step in d.steps)
    sizes = {"arena": d.memory.arena_bytes, "arena without reuse": d.memory.unplanned_bytes}
    sizes["moved by a call"] = traffic
    sizes |= {home: spaces[home] for home in ("parameter", "constant", "output")}
    return {name: f"{size / MIB:.2f} MiB" for name, size in sizes.items()}


def _times(a: Description, b: Description) -> Iterator[ChangedValue]:
    """Yield the times of the profiles and of the layers that changed most, if both have one."""
    if not (a.runs and b.runs):
        return
    before, after = ({c.name: c.seconds or 0.0 for c in d.layers} for d in (a, b))
    yield _time("all", sum(before.values()), sum(after.values()))
    pairs = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in before | after}
    for name in sorted(pairs, key=lambda name: -abs(pairs[name][0] - pairs[name][1]))[:MAX_LAYERS]:
        yield _time(name, *pairs[name])


def _time(what: str, before: float, after: float) -> ChangedValue:
    faster = f" ({before / after:.2f} times as fast)" if before and after else ""
    return ChangedValue("times", what, f"{1e3 * before:.3f} ms", f"{1e3 * after:.3f} ms{faster}")
