"""The measurements that one compile uses: found, predicted, or made now."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from minigraph.autotune.candidate import HostBench, Problem, Runner
from minigraph.autotune.data import warm
from minigraph.autotune.measurement import (
    LOADED,
    MEASURED,
    PREDICTED,
    QUARANTINE,
    RECEIVED,
    STORED,
    Key,
    Measurement,
    ProblemTable,
    merge,
    table,
)
from minigraph.autotune.policy import Policy, choose_by_layouts
from minigraph.autotune.prediction import predict
from minigraph.autotune.tuner import measure
from minigraph.cache import Entry, Store, environment_of
from minigraph.cache.counters import tuning_counters
from minigraph.errors import CacheError, warn_once
from minigraph.graph import Array, Spec, aligned_empty
from minigraph.messages import progress

log = logging.getLogger(__name__)
COPIES = 16  # of a problem's operands: in its layouts, and what has to come out
Tables = Mapping[str, ProblemTable]  # by subject

# Entries that no store could keep, by key: a process measures nothing twice even so.
_unstored: dict[str, Entry] = {}


@dataclass(frozen=True)
class Sources:
    """Where measurements are found before any are made.

    store     what is on disk, or None
    loaded    entries of a file, by key; they go before those of the store
    peer      tables of the process that measures for this one, by subject; then these alone count
    predicts  whether a problem is measured only where the tables of its family predict nothing
    """

    store: Store | None = None
    loaded: Mapping[str, Entry] = field(default_factory=dict)
    peer: Tables | None = None
    predicts: bool = False


class Session:
    """The measurements that one compile uses.

    mode              "off": none; "cached": those that are found; "tune": and measure the rest;
                      "frozen": and raise CacheError for the rest
    policy            for whoever chooses
    budget            seconds of measuring
    environment       where measurements hold: versions, processor, ..., by name
    before_measuring  is called before it measures
    spent             seconds of measuring so far
    used              entries that this compile has used or made, by key
    """

    def __init__(
        self,
        mode: str,
        policy: Policy,
        budget: float,
        environment: Mapping[str, str],
        sources: Sources = Sources(),
        before_measuring: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.mode = mode
        self.policy = policy
        self.environment = dict(environment)
        self.sources = sources
        self.used: dict[str, Entry] = {}
        self.spent = 0.0
        self._budget = budget
        self._patience = budget
        self._clock = clock
        self._before_measuring = before_measuring
        self._tables = {
            subject: dataclasses.replace(each, origin=RECEIVED)
            for subject, each in (sources.peer or {}).items()
        }
        self._problems: dict[str, Problem] = {}  # of the tables, by subject
        self._missing: set[str] = set()
        self._odd: set[Entry | None] = set()

    def tables(self, problems: Sequence[Problem]) -> dict[str, ProblemTable]:
        """Return the tables of problems, by subject.

        Problems that are neither found nor measured, as the mode and the budget will have it, are
        not in the result.  The more work a problem is, the earlier it is measured.
        """
        if self.mode == "off":
            return {}
        wanted = {problem.subject: problem for problem in problems}
        if self.sources.peer is None:
            self._find_or_measure([*wanted.values()])
        return {subject: self._tables[subject] for subject in wanted if subject in self._tables}

    def _find_or_measure(self, problems: Sequence[Problem]) -> None:
        new = self._without_table(problems)
        self._look_up([p for p in new if p.subject not in self._missing])
        missing = self._without_table(problems)
        old = len(problems) - len(missing)
        if missing and self.mode == "frozen":
            raise CacheError(self._why_missing(missing[0]))
        if missing and self.mode == "tune":
            if self.sources.predicts:
                for problem in missing:
                    self._predict(problem)
            missing = self._without_table(missing)
            if missing and self._left > 0:
                self._measure(sorted(missing, key=lambda p: (-p.work, p.subject)))
        log.info(
            "%d problems: %d were known, %d are not measured",
            *(len(problems), old, len(self._without_table(problems))),
        )

    def _without_table(self, problems: Sequence[Problem]) -> list[Problem]:
        return [p for p in problems if p.subject not in self._tables]

    @property
    def all_tables(self) -> Tables:
        """The tables that this compile has used, as another session may receive them."""
        return dict(self._tables)

    @property
    def _left(self) -> float:
        return self._budget - self.spent

    def quarantine(self, subject: str, measurement: Measurement, why: str) -> None:
        """Keep that a candidate has failed at run time; what is not measured is left alone."""
        if subject not in self._tables:
            return
        failed = self._tables[subject].with_error(measurement, f"{QUARANTINE}{why}")
        if failed.origin in (PREDICTED, RECEIVED):
            self._tables[subject] = failed
        else:
            self._add(self._problems[subject], failed)

    def merge(self, old: Entry, new: Entry) -> Entry:
        """Return `new` with the candidates of `old`, unless those are odd for their problem."""
        problem = self._problems.get(new.subject)
        return problem.merge(old, new) if problem else merge(old, new)

    # ------------------------------------------------------------ other sizes

    def _predict(self, problem: Problem) -> None:
        """Make a table of what the tables of other sizes lead to expect of a problem, if any do."""
        tables = {t.subject: t for t in self._tables_by_family.get(problem.family, ())}
        measured = (self._tables[subject] for subject in self._problems)
        tables.update((t.subject, t) for t in measured if t.family == problem.family)
        rows = predict(problem.sizes, [*tables.values()])
        rows = [row for row in rows if row.layouts in problem.layouts]
        if rows:
            self._tables[problem.subject] = problem.table(rows, PREDICTED)

    @functools.cached_property
    def _tables_by_family(self) -> Mapping[str, Sequence[ProblemTable]]:
        """What was measured here for any function; read once for all problems."""
        environment, store = environment_of(self.environment), self.sources.store
        stored = store.entries() if store else []
        families = defaultdict(list)
        for entry in (*stored, *_unstored.values(), *self.sources.loaded.values()):
            contents = table(entry) if entry.environment == environment else ""
            if isinstance(contents, ProblemTable):
                families[contents.family].append(contents)
        return families

    # ------------------------------------------------------------ what is found

    def _look_up(self, problems: Sequence[Problem]) -> None:
        """Use the tables of problems that were measured before."""
        used = []
        for problem, old in zip(problems, self._find(problems), strict=True):
            if old:
                tuning_counters.count("hits")
                log.debug("%s: %s %s", old.origin, problem.kind, problem.subject)
                used.append(self._use(problem, old))
            elif problem.subject not in self._missing:
                tuning_counters.count("misses")
                self._missing.add(problem.subject)
        if self.sources.store:
            self.sources.store.touch(used)

    def _find(self, problems: Sequence[Problem]) -> Iterator[ProblemTable | None]:
        """Yield the table of each problem that was measured before, and None for the others."""
        store, fields = self.sources.store, environment_of(self.environment)
        wanted = [Entry(problem.kind, problem.subject, fields, "") for problem in problems]
        stored: Sequence[Entry | None] = [None] * len(wanted)
        if store:
            damaged = store.rejected
            stored = store.find(wanted)
            tuning_counters.count("rejected", store.rejected - damaged)
        for problem, entry, on_disk in zip(problems, wanted, stored, strict=True):
            own = self._read(problem, _unstored.get(entry.key), MEASURED)
            own = own or self._read(problem, on_disk, STORED)
            loaded = self._read(problem, self.sources.loaded.get(entry.key), LOADED)
            # A candidate may have been quarantined since the file was saved.
            yield loaded.merged(own) if loaded and own else loaded or own

    def _read(self, problem: Problem, entry: Entry | None, origin: str) -> ProblemTable | None:
        """Return the table in an entry; None if there is none, or an odd one, which is counted."""
        contents = problem.read(entry) if entry else None
        if isinstance(contents, str):
            tuning_counters.count("rejected", int(entry not in self._odd))
            self._odd.add(entry)
            return None
        return contents and dataclasses.replace(contents, origin=origin)

    # ------------------------------------------------------------ what is measured

    def _measure(self, problems: Sequence[Problem]) -> None:
        self._before_measuring()
        benches = dict.fromkeys(problem.workbench for problem in problems)
        dtypes = dict.fromkeys(spec.dtype for p in problems for spec in (*p.inputs, *p.results))
        for bench in benches:
            warm(bench, dtypes)
        with self._turn():
            for bench in benches:
                bench.compile(_kernels(p for p in problems if p.workbench is bench))
        memory = _memory(problems)
        for problem in _with_progress(problems):
            with self._turn() as start:
                self._look_up([problem])  # another process may have measured it meanwhile
                if problem.subject not in self._tables:
                    new = self._measured(problem, start + self._left, memory)
                    if new:  # at once: an interrupt loses no more than what is being measured
                        self._add(problem, new)
            measured = problem.subject in self._tables
            problem.release(self._chosen(problem) if measured else ())
            if self._left <= 0:
                break
        for bench in benches:
            bench.release()

    def _measured(
        self, problem: Problem, deadline: float, memory: Array | None
    ) -> ProblemTable | None:
        """Return what is measured now; None, with a warning, where memory does not suffice."""
        bench = problem.workbench
        if memory is not None and isinstance(bench, HostBench):
            bench = bench.within(memory)
        try:
            return measure(problem, deadline, self._clock, bench)
        except MemoryError as error:  # the function itself may need less
            warn_once(
                f"{problem.kind} {problem.subject} could not be measured ({error}), so a heuristic "
                "chooses its algorithm",
                cause="memory for measurements",
            )
            return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[float]:
        """Measure alone, once others have measured: side by side, times are wrong.

        Gives the time at which it begins, and counts what passes until its end.  A session waits no
        longer in all than it may measure: another process may have been stopped.
        """
        with contextlib.ExitStack() as held:
            start = self._clock()
            if self.sources.store:
                alone = held.enter_context(self.sources.store.turn(self._patience))
                self._patience -= self._clock() - start if alone else self._patience
                start = self._clock()
            yield start
            self.spent += self._clock() - start

    def _chosen(self, problem: Problem) -> set[Key]:
        """Return the keys of the candidates that will be chosen, one for each of the layouts."""
        measurements = self._tables[problem.subject].measurements
        return {m.key for m in choose_by_layouts(measurements, self.policy).values()}

    def _add(self, problem: Problem, new: ProblemTable) -> None:
        """Use a table from now on, and keep it on disk or else in this process."""
        log.debug("%s: %s %s", new.origin, problem.kind, problem.subject)
        entry = self._use(problem, new)
        if self.sources.store and self.sources.store.keep([entry], problem.merge):
            _unstored.pop(entry.key, None)
        else:
            _unstored[entry.key] = entry

    def _use(self, problem: Problem, new: ProblemTable) -> Entry:
        """Use a table of a problem from now on; return its entry."""
        entry = new.entry(problem.kind, self.environment)
        self._tables[new.subject] = new
        self._problems[new.subject] = problem
        self.used[entry.key] = entry
        return entry

    def _why_missing(self, problem: Problem) -> str:
        text = f'autotune="frozen": nothing is measured for {problem.kind} {problem.subject}'
        store = self.sources.store
        for entry in store.nearest(problem.kind, problem.subject) if store else ():
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
        for candidate in problem.candidates():
            with contextlib.suppress(Exception):  # of whatever library: the trial notes it
                yield candidate.kernel


def _with_progress(problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield problems and show on a terminal how much of the work is left."""
    with progress(
        desc="autotune",
        total=sum(problem.work for problem in problems),
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed} spent, {remaining} left",
    ) as bar:
        for problem in problems:
            yield problem
            bar.update(problem.work)
