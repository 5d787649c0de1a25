"""The tables of one run.

Where two sides differ by less than their samples scatter, a table says so and names no winner.
"""

from __future__ import annotations

from minigraph.bench.bound import bound
from minigraph.bench.losses import STEPS, difference
from minigraph.bench.precision import USUAL
from minigraph.bench.results import EAGER, OTHER, CaseResult, Results, SideResult, differ
from minigraph.bench.table import NOTHING, SAME, Table, milliseconds


def tables(results: Results) -> dict[str, Table]:
    """Return all tables, by name."""
    return {
        "levels": _levels(results),
        "peers": _peers(results),
        "bound": _bounds(results),
        "tuning": _tuning(results),
        "losses": _losses(results),
        "sides": _sides(results),
    }


def _levels(results: Results) -> Table:
    measured = sorted({level for case in results.cases.values() for level in case.levels()})
    rows = []
    for case in results.cases.values():
        levels = case.levels()
        row = [case.title]
        for level in measured:
            published = case.published.get(str(level))
            told = f" ({published:.0%})" if published else ""
            row.append(_percent(levels, level) + told)
        rows.append(row)
    return Table(
        "Levels",
        "Speed in percent of level 0 (opt0), whose time is given; in brackets what MegBrain "
        "published for its levels.",
        ["", *(f"level {level}" for level in measured)],
        rows,
    )


def _percent(levels: dict[int, SideResult], level: int) -> str:
    if level not in levels:
        return NOTHING
    if level == 0:
        return milliseconds(levels[0].median)
    if 0 not in levels:
        return NOTHING
    if not differ(levels[0], levels[level]):
        return SAME
    return f"{levels[0].median / levels[level].median:.0%}"


def _peers(results: Results) -> Table:
    asked = results.options.get("peers") != []
    rows = []
    for case in results.cases.values():
        levels, best = case.levels(), case.best_peer()
        if not levels or not asked:
            continue
        level = max(levels)
        row = [case.title, f"{milliseconds(levels[level].median)} (level {level})"]
        if best is None:
            rows.append([*row, NOTHING, NOTHING, NOTHING])
            continue
        name, peer = best
        ratio = f"{peer.median / levels[level].median:.2f}"
        times = ratio if differ(levels[level], peer) else f"{SAME} ({ratio})"
        rows.append([*row, name, milliseconds(peer.median), times])
    about = (
        "How many times as fast the highest level is as the fastest peer. Of expressions the peers "
        "allocate their results anew in each call, as they always do; minigraph takes memory that "
        "the caller has let go of, and fresh pages cost more than the arithmetic."
    )
    missing = [f"{name} {why}." for name, why in results.missing.items()]
    failed = [
        f"Left out of {case.title}: {name}, which failed."
        for case in results.cases.values()
        for name, side in case.sides.items()
        if side.error and not name.startswith("level ")
    ]
    header = ["", "minigraph", "best peer", "its time", "times as fast"]
    return Table("Peers", about, header, rows, [*missing, *failed])


def _bounds(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        levels, limit = case.levels(), bound(case)
        if not levels:
            continue
        if limit is None:
            rows.append([case.title, *[NOTHING] * 4])
            continue
        level = max(levels)
        share = limit.seconds / levels[level].median
        kind = "memory" if limit.of_memory else "arithmetic"
        rows.append(
            [
                case.title,
                f"{share:.0%} (level {level})",
                milliseconds(limit.seconds),
                kind,
                str(limit),
            ]
        )
    about = (
        "What share of the bound is reached: the slower of moving the bytes that a step has to "
        "move at the speed of the fastest copy, and of its convolutions and products at the speed "
        "of a product of matrices, measured in the same rounds. Beyond 100% go what fits the "
        "caches and, since convolutions are counted as direct ones, Winograd's algorithm."
    )
    return Table("Bounds", about, ["", "share", "bound", "of", "which is"], rows)


def _tuning(results: Results) -> Table:
    rows = []
    for case in results.cases.values():
        title, levels = case.title, case.levels()
        for level, untuned in case.untuned().items():
            row = [title, f"level {level}", milliseconds(untuned.median)]
            if level in levels:
                tuned = levels[level]
                ratio = f"{untuned.median / tuned.median:.2f}" if differ(untuned, tuned) else SAME
                rows.append([*row, milliseconds(tuned.median), ratio])
            else:
                rows.append([*row, NOTHING, NOTHING])
            title = ""
    about = (
        "How many times as fast a level is with measured algorithms as with those of heuristics."
    )
    return Table("Tuning", about, ["", "", "untuned", "tuned", "times as fast"], rows)


def _losses(results: Results) -> Table:
    rows, notes = [], []
    for case in results.cases.values():
        asked = {name: side for name, side in case.sides.items() if side.losses or side.lost}
        if not asked:
            continue
        level = next((name for name in asked if name not in (EAGER, OTHER)), NOTHING)
        ours, theirs, again = (
            asked[name].losses if name in asked else [] for name in (level, EAGER, OTHER)
        )
        ends = [f"{x[i]:.4f}" if x else NOTHING for x in (ours, theirs) for i in (0, -1)]
        apart = [f"{difference(x, theirs):.1e}" if x and theirs else NOTHING for x in (ours, again)]
        rows.append([case.title, level, *ends, *apart])
        notes += [f"{case.title}, {name}: {s.lost}" for name, s in asked.items() if s.lost]
    about = (
        f"The first and the last of the losses of {STEPS} training steps, of minigraph and of "
        "PyTorch, and the largest difference over PyTorch's: from the same parameters, on the same "
        f"batches, without dropout, in {results.options.get('precision', USUAL)}. Beside it how "
        "far PyTorch is from itself with the channels last."
    )
    header = ["", "", "first", "last", "PyTorch's first", "PyTorch's last"]
    header += ["largest difference", "PyTorch's own"]
    return Table("Losses", about, header, rows, notes)


def _sides(results: Results) -> Table:
    rows, notes = [], []
    for case in results.cases.values():
        title = case.title
        for name, side in case.sides.items():
            if side.seconds or side.error:
                rows.append([title, name, *_side(case, side)])
                title = ""  # not in every row
            if side.error:
                notes.append(f"{case.title}, {name}: {side.error}")
    about = (
        "Time of a step: the median of so many turns, and the distance between their quartiles "
        "over it. First calls begin with an imported library and include making the data and the "
        "weights, compiling and tuning: with nothing on disk (cold), and in a second process "
        "(warm). On a CPU the peak memory is that of the whole process. PyTorch's channels last "
        "come with its fused Adam."
    )
    header = ["", "side", "a step", "spread", "turns", "images/s", "cold", "warm", "peak memory"]
    return Table("Every side", about, header, rows, notes)


def _side(case: CaseResult, side: SideResult) -> list[str]:
    first = [_seconds(side.cold), _seconds(side.warm)]
    if not side.seconds:
        return ["failed", *[NOTHING] * 3, *first, NOTHING]
    step = milliseconds(side.median) + (", then failed" if side.error else "")
    images = f"{case.images / side.median:,.0f}" if case.images else NOTHING
    peak = f"{side.peak / (1 << 20):,.0f} MiB" if side.peak else NOTHING
    spread = f"{side.spread:.0%}" if side.spread < 10 else "over 1000%"
    return [step, spread, str(len(side.seconds)), images, *first, peak]


def _seconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{seconds:.2f} s"
