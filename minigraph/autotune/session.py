"""The measurements of one compile: read from stores, measured now, or left to the cost model."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minigraph.autotune.candidate import Candidate, Layouts, Problem, Runner, layout_names
from minigraph.autotune.data import warm_up
from minigraph.autotune.measurement import (
    LOADED,
    MEASURED,
    PREDICTED,
    QUARANTINE_PREFIX,
    RECEIVED,
    STORED,
    Measurement,
    Policy,
    ProblemTable,
    choose_by_layouts,
    merge,
    table,
)
from minigraph.autotune.tuner import measure
from minigraph.cache import Entry, Store, differences, environment_of
from minigraph.cache.counters import tuning_counters
from minigraph.errors import CacheError, GraphError, warn_once
from minigraph.options import MEASURING
from minigraph.platform.messages import progress

log = logging.getLogger(__name__)
Tables = Mapping[str, ProblemTable]  # by subject
LayoutRequest = tuple[Problem, Layouts]  # the layouts of a node, or () for all layouts

# Entries that could not be stored, by key, so that the process does not measure them again.
_unstored: dict[str, Entry] = {}


@dataclass(eq=False)
class Session:
    """The measurements of one compile.

    mode              "off": use no measurements; "cached": use stored measurements; "tune": also
                      measure missing problems if that may pay, in the layouts of their nodes;
                      "exhaustive": also measure all candidates in all layouts; "frozen": raise
                      CacheError for a missing problem
    policy            by which candidates are chosen
    budget            seconds of measuring
    environment       versions, processor and so on, by name, for which measurements hold
    store             on disk, or None
    loaded            entries of a loaded file, by key; they take precedence over the store's
    peer              tables of another process that measures for this one, or None
    before_measuring  called before the first measurement
    spent_seconds     seconds of measuring so far
    used_entries      entries that the compile has read or made, by key
    """

    mode: str
    policy: Policy
    budget: float
    environment: Mapping[str, str]
    store: Store | None = None
    loaded: Mapping[str, Entry] = field(default_factory=dict)
    peer: Tables | None = None
    before_measuring: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        self.used_entries: dict[str, Entry] = {}
        self.spent_seconds = 0.0
        self._lock_timeout = self.budget
        received = (self.peer or {}).items()
        self._tables = {name: dataclasses.replace(each, origin=RECEIVED) for name, each in received}
        self._problems: dict[str, Problem] = {}  # of the tables, by subject
        self._looked_up: set[str] = set()  # subjects
        self._counted: set[str] = set()  # subjects
        self._invalid: set[Entry | None] = set()

    def tables(self, requests: Sequence[LayoutRequest]) -> dict[str, ProblemTable]:
        """Return the tables of problems, by subject; a problem that is not measured has none.

        Problems are measured in the order of their work, the largest first, within the budget.
        """
        if self.mode == "off":
            return {}
        if self.peer is None:
            self._find_or_measure(requests)
        subjects = dict.fromkeys(problem.subject for problem, _ in requests)
        return {subject: self._tables[subject] for subject in subjects if subject in self._tables}

    def _find_or_measure(self, requests: Sequence[LayoutRequest]) -> None:
        problems = [problem for problem, _ in requests]
        self._look_up([p for p in problems if p.subject not in self._looked_up])
        # Only the exhaustive mode measures all layouts; the others choose layouts by estimates.
        counted = [pair for pair in dict.fromkeys(requests) if pair[1] or self.mode == "exhaustive"]
        missing = self._unmeasured(counted)
        counted_before = len(self._counted)
        for problem, layouts in counted:  # a problem counts once
            if problem.subject not in self._counted:
                self._counted.add(problem.subject)
                tuning_counters.count("misses" if (problem, layouts) in missing else "hits")
        if missing and self.mode == "frozen":
            raise CacheError(self._why_missing(missing[0][0]))
        if missing and self.mode in MEASURING:
            self._measure(missing)
        counts = len(counted), len(counted) - len(missing), len(self._unmeasured(missing))
        # Lowering asks again, problem by problem.
        level = logging.INFO if len(self._counted) > counted_before else logging.DEBUG
        log.log(level, "%d problems: %d found, %d not measured", *counts)

    def _unmeasured(self, requests: Iterable[LayoutRequest]) -> list[LayoutRequest]:
        """Return the problems that the tables do not have in these layouts."""
        missing = []
        for problem, layouts in requests:
            current = self._tables.get(problem.subject)
            measured = {m.layouts for m in current.measurements} if current else ()
            layout_measured = self.mode != "exhaustive" and layout_names(layouts) in measured
            if not (current and (current.exhaustive or layout_measured)):
                missing.append((problem, layouts))
        return missing

    @property
    def all_tables(self) -> Tables:
        """The tables that this compile has used, for the `peer` of another session."""
        return dict(self._tables)

    @property
    def _remaining_seconds(self) -> float:
        return self.budget - self.spent_seconds

    def quarantine(self, subject: str, measurement: Measurement, why: str) -> None:
        """Note in a measured candidate's table that it failed at run time."""
        if subject not in self._tables:
            return
        failed = self._tables[subject].with_error(measurement, f"{QUARANTINE_PREFIX}{why}")
        if failed.origin == RECEIVED:
            self._tables[subject] = failed
        else:
            self._record([(self._problems[subject], failed)])

    def merge(self, old: Entry, new: Entry) -> Entry:
        """Return `new` with the candidates of `old`, if `old` is valid for the problem."""
        problem = self._problems.get(new.subject)
        return merge(old, new, problem.read if problem else table)

    def _look_up(self, problems: Sequence[Problem]) -> None:
        """Use the stored tables of problems."""
        by_subject = {problem.subject: problem for problem in problems}
        self._looked_up.update(by_subject)
        unique = [*by_subject.values()]
        for problem, old in zip(unique, self._find(unique), strict=True):
            if old:
                log.debug("%s: %s %s", old.origin, problem.kind, problem.subject)
                self._use(problem, old)

    def _find(self, problems: Sequence[Problem]) -> Iterator[ProblemTable | None]:
        """Yield the stored table of each problem, or None."""
        store, fields = self.store, environment_of(self.environment)
        keys = [Entry(problem.kind, problem.subject, fields, "") for problem in problems]
        stored: Sequence[Entry | None] = [None] * len(keys)
        if store:
            damaged = store.rejected
            stored = store.find(keys)
            tuning_counters.count("rejected", store.rejected - damaged)
        for problem, entry, stored_entry in zip(problems, keys, stored, strict=True):
            recorded = self._read(problem, _unstored.get(entry.key), MEASURED)
            recorded = recorded or self._read(problem, stored_entry, STORED)
            loaded = self._read(problem, self.loaded.get(entry.key), LOADED)
            # The store may have quarantined a candidate since the file was saved.
            yield loaded.merged(recorded) if loaded and recorded else loaded or recorded

    def _read(self, problem: Problem, entry: Entry | None, origin: str) -> ProblemTable | None:
        """Return the table in an entry; None without an entry; count an invalid one as rejected."""
        contents = problem.read(entry) if entry else None
        if isinstance(contents, str):
            tuning_counters.count("rejected", int(entry not in self._invalid))
            self._invalid.add(entry)
            return None
        return contents and dataclasses.replace(contents, origin=origin)

    def _shortlists(self, requests: Sequence[LayoutRequest]) -> dict[Problem, Iterable[Candidate]]:
        """Return the candidates to measure, by problem; record a single candidate as predicted."""
        if self.mode == "exhaustive":
            return {problem: problem.candidates() for problem, _ in requests}
        shortlists: dict[Problem, list[Candidate]] = defaultdict(list)
        predicted: list[tuple[Problem, ProblemTable]] = []
        for problem, layouts in requests:
            candidates = problem.shortlist(layouts)
            if len(candidates) > 1:
                shortlists[problem] += candidates
                continue
            with contextlib.suppress(GraphError):  # the heuristic tries other candidates
                rows = [c.measurement(c.kernel.scratch) for c in candidates]
                new = ProblemTable(problem.subject, tuple(rows), False, PREDICTED)
                predicted.append((problem, new))
        self._record(predicted)
        return dict(shortlists)

    def _measure(self, requests: Sequence[LayoutRequest]) -> None:
        shortlists = self._shortlists(requests)
        if not shortlists or self._remaining_seconds <= 0:
            return
        self.before_measuring()
        (bench,) = {problem.workbench for problem in shortlists}
        warm_up(bench, dict.fromkeys(s.dtype for p in shortlists for s in (*p.inputs, *p.results)))
        with self._measuring_lock():
            bench.compile(_kernels(itertools.chain.from_iterable(shortlists.values())))
        order = sorted(shortlists, key=lambda problem: (-problem.work, problem.subject))
        bar_format = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} spent, {remaining} left"
        total = sum(problem.work for problem in order)
        with progress(desc="autotune", total=total, bar_format=bar_format) as bar:
            for problem in order:
                with self._measuring_lock() as start:
                    self._look_up([problem])  # another process may have measured it meanwhile
                    if self._unmeasured(pair for pair in requests if pair[0] is problem):
                        deadline = start + self._remaining_seconds
                        self._measure_one(problem, shortlists[problem], deadline)
                current = self._tables.get(problem.subject)
                best = choose_by_layouts(current.measurements if current else (), self.policy)
                problem.release({m.key for m in best.values()})
                bar.update(problem.work)
                if self._remaining_seconds <= 0:
                    break
        bench.release()

    def _measure_one(
        self, problem: Problem, candidates: Iterable[Candidate], deadline: float
    ) -> None:
        """Measure a problem and keep the table; warn if memory does not suffice."""
        shortlist = None if self.mode == "exhaustive" else candidates
        try:
            new = measure(problem, deadline, self.clock, shortlist)
        except MemoryError as error:  # the function itself may need less
            warn_once(
                f"{problem.kind} {problem.subject} could not be measured ({error}), so a heuristic "
                "chooses its algorithm",
                cause="memory for measurements",
            )
            return
        if new:  # keep the table now: an interrupt loses only the problem that is being measured
            self._record([(problem, new)])

    @contextlib.contextmanager
    def _measuring_lock(self) -> Iterator[float]:
        """Hold the lock of the processes that measure, yield the time, count the seconds as spent.

        Processes that measure at the same time would get wrong times.  All waits of a session
        together take at most its budget, as the process with the lock may be suspended.
        """
        with contextlib.ExitStack() as stack:
            start = self.clock()
            if self.store:
                acquired = stack.enter_context(self.store.measuring_lock(self._lock_timeout))
                self._lock_timeout -= self.clock() - start if acquired else self._lock_timeout
                start = self.clock()
            yield start
            self.spent_seconds += self.clock() - start

    def _record(self, tables: Sequence[tuple[Problem, ProblemTable]]) -> None:
        """Use tables, merged with those in use, and store them on disk, or else in this process."""
        entries = []
        for problem, new in tables:
            log.debug("%s: %s %s", new.origin, problem.kind, problem.subject)
            old = self._tables.get(problem.subject)
            entries.append(self._use(problem, new.merged(old) if old else new))
        stored = self.store and self.store.keep(entries, self.merge)
        for entry in entries:
            if stored:
                _unstored.pop(entry.key, None)
            else:
                _unstored[entry.key] = entry

    def _use(self, problem: Problem, new: ProblemTable) -> Entry:
        """Use a problem's table; return its entry."""
        entry = new.entry(problem.kind, self.environment)
        self._tables[new.subject] = new
        self._problems[new.subject] = problem
        self.used_entries[entry.key] = entry
        return entry

    def _why_missing(self, problem: Problem) -> str:
        text = f'autotune="frozen": nothing is measured for {problem.kind} {problem.subject}'
        store = self.store
        for entry in store.nearest(problem.kind, problem.subject) if store else ():
            if differ := differences(self.environment, dict(entry.environment)):
                text += f" (elsewhere it is: {'; '.join(differ)})"
                break
        return f'{text}; compile once with autotune="tune", or load a cache that has it'


def _kernels(candidates: Iterable[Candidate]) -> Iterator[Runner]:
    for candidate in candidates:
        with contextlib.suppress(Exception):  # from any library; the candidate's trial reports it
            yield candidate.kernel
