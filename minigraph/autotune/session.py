"""One compile's view of what is measured: what is known, what is measured now, what has failed."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from minigraph.autotune.candidate import HostBench, Problem, Runner
from minigraph.autotune.measurement import QUARANTINE, Measurement, ProblemTable, merge, table
from minigraph.autotune.policy import Policy
from minigraph.autotune.prediction import family_of, predicted
from minigraph.autotune.tuner import measure
from minigraph.cache import Entry, Measurements, environment_of
from minigraph.cache.counters import tuning_counters
from minigraph.errors import CacheError, warn_once
from minigraph.graph import Array, Spec, aligned_empty
from minigraph.messages import progress

log = logging.getLogger(__name__)
STORED, LOADED, MEASURED = "stored", "loaded file", "measured"
NEAREST = "measured for another size"
TOLD = "measured by another process"
COPIES = 16  # of a problem's operands: in its layouts, and what has to come out
Told = Mapping[str, tuple[Measurement, ...]]

# Entries that no store could keep, by key: a process measures nothing twice even so.
_unkept: dict[str, Entry] = {}


class Session:
    """The measurements that one compile uses.

    mode         "off": none; "cached": what is known; "tune": and measure the rest; "frozen": and
                 raise CacheError for the rest
    policy       for whoever chooses
    budget       seconds of measuring
    environment  where measurements hold: versions, processor, ..., by name
    store        what is on disk, or None
    loaded       entries of a file, by key; they go before those of the store
    borrows      whether a problem is measured only if none of its family was
    told         what another process knows of problems, by subject; then that alone is known
    measures     is called before it measures
    spent        seconds of measuring so far
    used         entries that this compile has used or made, by key
    """

    def __init__(
        self,
        mode: str,
        policy: Policy,
        budget: float,
        environment: Mapping[str, str],
        store: Measurements | None = None,
        loaded: Mapping[str, Entry] | None = None,
        borrows: bool = False,
        told: Told | None = None,
        measures: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mode = mode
        self.policy = policy
        self.environment = dict(environment)
        self.store = store
        self.loaded = loaded or {}
        self.borrows = borrows
        self.used: dict[str, Entry] = {}
        self.spent = 0.0
        self._budget = budget
        self._patience = budget
        self._clock = clock
        self._measures = measures
        self._told = told
        self._known = {s: (ProblemTable(s, rows), TOLD) for s, rows in (told or {}).items()}
        self._problems: dict[str, Problem] = {}  # of the tables, by subject
        self._missing: set[str] = set()
        self._odd: set[Entry | None] = set()
        self._tables_before: dict[str, list[ProblemTable]] = {}  # by family

    def tables(self, problems: Sequence[Problem]) -> dict[str, tuple[ProblemTable, str]]:
        """Return what is known of problems, by subject, and where it comes from.

        Problems that are neither known nor measured, as the mode and the budget will have it, are
        not in the result.  The more work a problem is, the earlier it is measured.
        """
        if self.mode == "off":
            return {}
        wanted = {problem.subject: problem for problem in problems}
        if self._told is None:
            self._find_out([*wanted.values()])
        return {subject: self._known[subject] for subject in wanted if subject in self._known}

    def _find_out(self, problems: Sequence[Problem]) -> None:
        """Look up problems, and measure those that are not known, as far as that may be done."""
        self._look_up([p for p in problems if p.subject not in self._known])
        missing = [p for p in problems if p.subject not in self._known]
        if missing and self.mode == "frozen":
            raise CacheError(self._why_missing(missing[0]))
        if missing and self.mode == "tune" and self.borrows:
            missing = [p for p in missing if not self._borrow(p)]
        if missing and self.mode == "tune" and self.left > 0:
            self._measure(sorted(missing, key=lambda p: (-p.work, p.subject)))
        unknown = sum(p.subject not in self._known for p in problems)
        log.info(
            "%d problems: %d were known, %d are not measured",
            *(len(problems), len(problems) - len(missing), unknown),
        )

    @property
    def knowledge(self) -> Told:
        """What it knows of problems, as another session is told."""
        return {subject: known.measurements for subject, (known, _) in self._known.items()}

    @property
    def left(self) -> float:
        """Seconds that may still be spent."""
        return self._budget - self.spent

    def maker(self, problem: Problem, measurement: Measurement) -> Callable[[], Runner] | None:
        """Return what makes the kernel that was measured; None if the library has it no longer."""
        known, _ = self._known[problem.subject]
        return known.makers.get(measurement.key) or problem.maker(measurement)

    def quarantine(self, subject: str, measurement: Measurement, why: str) -> None:
        """Keep that a candidate has failed at run time; what is not measured is left alone."""
        if subject not in self._known:
            return
        known, origin = self._known[subject]
        failed = known.with_error(measurement, f"{QUARANTINE}{why}")
        if origin in (NEAREST, TOLD):
            self._known[subject] = failed, origin
        else:
            self.learn(self._problems[subject], failed, origin)

    def _borrow(self, problem: Problem) -> bool:
        """Take what is expected of a problem for known; return whether it says anything."""
        family = family_of(problem.subject)
        tables = {known.subject: known for known in self._measured_before(family)}
        tables.update((s, self._known[s][0]) for s in self._problems if family_of(s) == family)
        expected = predicted(problem.subject, tables.values())
        rows = expected.measurements if expected else ()
        rows = tuple(row for row in rows if row.layouts in problem.layouts)
        if rows:
            self._known[problem.subject] = ProblemTable(problem.subject, rows), NEAREST
        return bool(rows)

    def _measured_before(self, family: str) -> list[ProblemTable]:
        """Return what was measured here of problems of a family, for any function."""
        if family not in self._tables_before:  # read once for all problems of the family
            found = map(table, self._entries_before.get(family, ()))
            self._tables_before[family] = [x for x in found if isinstance(x, ProblemTable)]
        return self._tables_before[family]

    @functools.cached_property
    def _entries_before(self) -> Mapping[str, Sequence[Entry]]:
        environment = environment_of(self.environment)
        stored = self.store.entries() if self.store else []
        families = defaultdict(list)
        for entry in (*stored, *_unkept.values(), *self.loaded.values()):
            if entry.environment == environment:
                families[family_of(entry.subject)].append(entry)
        return families

    def merge(self, old: Entry, new: Entry) -> Entry:
        """Return `new` with the candidates of `old`, unless those are odd for their problem."""
        problem = self._problems.get(new.subject)
        return problem.merge(old, new) if problem else merge(old, new)

    def _look_up(self, problems: Sequence[Problem]) -> None:
        found = []
        new = [problem for problem in problems if problem.subject not in self._missing]
        for problem, known in zip(new, self._find(new), strict=True):
            if known is None:
                tuning_counters.count("misses")
                self._missing.add(problem.subject)
                continue
            tuning_counters.count("hits")
            log.debug("%s: %s %s", known[1], problem.kind, problem.subject)
            found.append(self._remember(problem, *known))
        if self.store:
            self.store.touch(found)

    def _find(self, problems: Sequence[Problem]) -> list[tuple[ProblemTable, str] | None]:
        """Return what is known about each problem, if anything is, and where it comes from."""
        fields = environment_of(self.environment)
        wanted = [Entry(problem.kind, problem.subject, fields, "") for problem in problems]
        stored: list[Entry | None] = [None] * len(wanted)
        if self.store:
            damaged = self.store.rejected
            stored = self.store.find(wanted)
            tuning_counters.count("rejected", self.store.rejected - damaged)
        return [self._known_of(*each) for each in zip(problems, wanted, stored, strict=True)]

    def _known_of(
        self, problem: Problem, wanted: Entry, stored: Entry | None
    ) -> tuple[ProblemTable, str] | None:
        """Return what is known about a problem with this key, given what the store has of it."""
        found, origin = self._read(problem, _unkept.get(wanted.key)), MEASURED
        if not found:
            found, origin = self._read(problem, stored), STORED
        loaded = self._read(problem, self.loaded.get(wanted.key))
        if loaded:  # what is stored may be in quarantine
            return loaded.merged(found) if found else loaded, LOADED
        return (found, origin) if found else None

    def _read(self, problem: Problem, entry: Entry | None) -> ProblemTable | None:
        """Return the table in an entry; None if there is none, or an odd one, which is counted."""
        found = problem.table(entry) if entry else None
        if isinstance(found, str):
            tuning_counters.count("rejected", int(entry not in self._odd))
            self._odd.add(entry)
            return None
        return found

    def _measure(self, problems: Sequence[Problem]) -> None:
        self._measures()
        with self._turn():
            start = self._clock()
            for bench in dict.fromkeys(problem.workbench for problem in problems):
                bench.compile(_kernels(p for p in problems if p.workbench is bench))
            self.spent += self._clock() - start
        memory = _memory(problems)
        for problem in _shown(problems):
            with self._turn():
                start = self._clock()
                if not self._known_by_now(problem):
                    measured = self._measured(problem, start + self.left, memory)
                    if measured:  # at once: an interrupt loses no more than what is being measured
                        self.learn(problem, measured)
                self.spent += self._clock() - start
            if self.left <= 0:
                break

    def _known_by_now(self, problem: Problem) -> bool:
        """Return whether another process has measured a problem meanwhile; then it is known."""
        (known,) = self._find([problem])
        if known:
            tuning_counters.count("hits")
            self._remember(problem, *known)
        return known is not None

    def _measured(
        self, problem: Problem, deadline: float, memory: Array | None
    ) -> ProblemTable | None:
        """Return what is measured now; None, with a warning, where memory does not suffice."""
        if memory is not None and isinstance(problem.workbench, HostBench):
            problem = replace(problem, workbench=problem.workbench.within(memory))
        try:
            return measure(problem, deadline, self._clock)
        except MemoryError as error:  # the function itself may need less
            warn_once(
                f"{problem.kind} {problem.subject} could not be measured ({error}), so a heuristic "
                "chooses its algorithm",
                cause="memory for measurements",
            )
            return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Measure alone, once others have measured: side by side, times are wrong.

        A session waits no longer in all than it may measure: another process may have been stopped.
        """
        if not self.store:
            yield
            return
        start = self._clock()
        with self.store.turn(self._patience) as alone:
            self._patience -= self._clock() - start if alone else self._patience
            yield

    def learn(self, problem: Problem, known: ProblemTable, origin: str = MEASURED) -> None:
        """Remember what is new, on disk or else in this process."""
        log.debug("%s: %s %s", origin, problem.kind, problem.subject)
        entry = self._remember(problem, known, origin)
        if self.store and self.store.keep([entry], problem.merge):
            _unkept.pop(entry.key, None)
        else:
            _unkept[entry.key] = entry

    def _remember(self, problem: Problem, known: ProblemTable, origin: str) -> Entry:
        """Note what this compile knows of a problem; return its entry."""
        entry = known.entry(problem.kind, self.environment)
        self._known[known.subject] = (known, origin)
        self._problems[known.subject] = problem
        self.used[entry.key] = entry
        return entry

    def _why_missing(self, problem: Problem) -> str:
        text = f'autotune="frozen": nothing is measured for {problem.kind} {problem.subject}'
        for entry in self.store.nearest(problem.kind, problem.subject) if self.store else ():
            there = dict(entry.environment)
            names = sorted(self.environment.keys() | there.keys())
            differ = "; ".join(
                f"{name} is {self.environment.get(name)!r}, measured with {there.get(name)!r}"
                for name in names
                if self.environment.get(name) != there.get(name)
            )
            if differ:
                text += f" ({differ})"
                break
        return f'{text}; compile once with autotune="tune", or load a cache that has it'


def _memory(problems: Sequence[Problem]) -> Array | None:
    """Return memory for one problem after the other: its pages come once.  None: it is missing."""
    most = max(sum(spec.nbytes for spec in (*p.inputs, *p.results)) for p in problems)
    try:
        return aligned_empty(Spec((COPIES * most,), np.dtype(np.uint8)))
    except MemoryError:
        return None


def _kernels(problems: Iterable[Problem]) -> Iterator[Runner]:
    """Yield the kernels of all candidates that can be made."""
    for problem in problems:
        for candidate in problem.candidates(None):
            if not candidate.reference:
                with contextlib.suppress(Exception):  # of whatever library it is; it fails again
                    yield candidate.make()


def _shown(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield problems and show on a terminal how much of the work is left."""
    with progress(
        desc="autotune",
        total=sum(problem.work for problem in problems),
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed} spent, {remaining} left",
    ) as bar:
        for problem in problems:
            yield problem
            bar.update(problem.work)
