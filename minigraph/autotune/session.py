"""The measurements that one compile uses: found, left to the model of cost, or made now."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from minigraph.autotune.candidate import Candidate, Layouts, Problem, Runner, names_of
from minigraph.autotune.data import warm
from minigraph.autotune.measurement import (
    LOADED,
    MEASURED,
    PREDICTED,
    QUARANTINE,
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
Wanted = tuple[Problem, Layouts]  # and the layouts of a node that has to be computed; (): all

# Entries that no store could keep, by key: a process measures nothing twice even so.
_unstored: dict[str, Entry] = {}


@dataclass(eq=False)
class Session:
    """The measurements that one compile uses.

    mode              "off": none; "cached": those that are found; "tune": and measure the rest in
                      the layouts of nodes, where that may pay; "exhaustive": and measure all
                      candidates in all layouts; "frozen": and raise CacheError for the rest
    policy            for whoever chooses
    budget            seconds of measuring
    environment       where measurements hold: versions, processor, ..., by name
    store             what is on disk, or None
    loaded            entries of a file, by key; they go before those of the store
    peer              tables of the process that measures for this one; then these alone count
    before_measuring  is called before it measures
    spent             seconds of measuring so far
    used              entries that this compile has used or made, by key
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
        self.used: dict[str, Entry] = {}
        self.spent = 0.0
        self._patience = self.budget
        given = (self.peer or {}).items()
        self._tables = {name: dataclasses.replace(each, origin=RECEIVED) for name, each in given}
        self._problems: dict[str, Problem] = {}  # of the tables, by subject
        self._sought: set[str] = set()
        self._counted: set[str] = set()
        self._odd: set[Entry | None] = set()

    def tables(self, wanted: Sequence[Wanted]) -> dict[str, ProblemTable]:
        """Return the tables of problems, by subject.

        Problems that are neither found nor measured, as the mode and the budget will have it, are
        not in the result.  The more work a problem is, the earlier it is measured.
        """
        if self.mode == "off":
            return {}
        if self.peer is None:
            self._find_or_measure(wanted)
        subjects = dict.fromkeys(problem.subject for problem, _ in wanted)
        return {subject: self._tables[subject] for subject in subjects if subject in self._tables}

    def _find_or_measure(self, wanted: Sequence[Wanted]) -> None:
        self._look_up([problem for problem, _ in wanted if problem.subject not in self._sought])
        # Layouts are chosen by estimates where nothing is measured in all of them.
        asked = [each for each in dict.fromkeys(wanted) if each[1] or self.mode == "exhaustive"]
        missing = self._unknown(asked)
        for each in asked:  # a problem counts once
            if each[0].subject not in self._counted:
                self._counted.add(each[0].subject)
                tuning_counters.count("misses" if each in missing else "hits")
        if missing and self.mode == "frozen":
            raise CacheError(self._why_missing(missing[0][0]))
        if missing and self.mode in MEASURING:
            self._measure(missing)
        counts = len(asked), len(asked) - len(missing), len(self._unknown(missing))
        log.info("%d problems: %d were known, %d are not measured", *counts)

    def _unknown(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """Return the problems for which, in these layouts, the tables have no answer."""
        unknown = []
        for problem, layouts in wanted:
            known = self._tables.get(problem.subject)
            measured = {m.layouts for m in known.measurements} if known else ()
            partly = self.mode != "exhaustive" and names_of(layouts) in measured
            if not (known and (known.exhaustive or partly)):
                unknown.append((problem, layouts))
        return unknown

    @property
    def all_tables(self) -> Tables:
        """The tables that this compile has used, as another session may receive them."""
        return dict(self._tables)

    @property
    def _left(self) -> float:
        return self.budget - self.spent

    def quarantine(self, subject: str, measurement: Measurement, why: str) -> None:
        """Keep that a candidate has failed at run time; what is not measured is left alone."""
        if subject not in self._tables:
            return
        failed = self._tables[subject].with_error(measurement, f"{QUARANTINE}{why}")
        if failed.origin == RECEIVED:
            self._tables[subject] = failed
        else:
            self._keep([(self._problems[subject], failed)])

    def merge(self, old: Entry, new: Entry) -> Entry:
        """Return `new` with the candidates of `old`, unless those are odd for their problem."""
        problem = self._problems.get(new.subject)
        return merge(old, new, problem.read if problem else table)

    def _look_up(self, problems: Sequence[Problem]) -> None:
        """Use the tables of problems that were measured before."""
        asked = {problem.subject: problem for problem in problems}
        self._sought.update(asked)
        for problem, old in zip(asked.values(), self._find([*asked.values()]), strict=True):
            if old:
                log.debug("%s: %s %s", old.origin, problem.kind, problem.subject)
                self._use(problem, old)

    def _find(self, problems: Sequence[Problem]) -> Iterator[ProblemTable | None]:
        """Yield the table of each problem that was measured before, and None for the others."""
        store, fields = self.store, environment_of(self.environment)
        wanted = [Entry(problem.kind, problem.subject, fields, "") for problem in problems]
        stored: Sequence[Entry | None] = [None] * len(wanted)
        if store:
            damaged = store.rejected
            stored = store.find(wanted)
            tuning_counters.count("rejected", store.rejected - damaged)
        for problem, entry, on_disk in zip(problems, wanted, stored, strict=True):
            own = self._read(problem, _unstored.get(entry.key), MEASURED)
            own = own or self._read(problem, on_disk, STORED)
            loaded = self._read(problem, self.loaded.get(entry.key), LOADED)
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

    def _tried(self, wanted: Sequence[Wanted]) -> dict[Problem, Iterable[Candidate]]:
        """Return the candidates to measure; of the others, what the model chooses is kept."""
        if self.mode == "exhaustive":
            return {problem: problem.candidates() for problem, _ in wanted}
        tried: dict[Problem, list[Candidate]] = defaultdict(list)
        left: list[tuple[Problem, ProblemTable]] = []
        for problem, layouts in wanted:
            candidates = problem.shortlist(layouts)
            if len(candidates) > 1:
                tried[problem] += candidates
                continue
            with contextlib.suppress(GraphError):  # the heuristic goes on to others
                rows = [c.measurement(c.kernel.scratch) for c in candidates]
                new = ProblemTable(problem.subject, tuple(rows), False, PREDICTED)
                left.append((problem, new))
        self._keep(left)
        return dict(tried)

    def _measure(self, wanted: Sequence[Wanted]) -> None:
        tried = self._tried(wanted)
        if not tried or self._left <= 0:
            return
        self.before_measuring()
        (bench,) = {problem.workbench for problem in tried}
        warm(bench, dict.fromkeys(s.dtype for p in tried for s in (*p.inputs, *p.results)))
        with self._turn():
            bench.compile(_kernels(c for candidates in tried.values() for c in candidates))
        order = sorted(tried, key=lambda problem: (-problem.work, problem.subject))
        bar_format = "{desc}: {percentage:3.0f}%|{bar}| {elapsed} spent, {remaining} left"
        total = sum(problem.work for problem in order)
        with progress(desc="autotune", total=total, bar_format=bar_format) as bar:
            for problem in order:
                with self._turn() as start:
                    self._look_up([problem])  # another process may have measured it meanwhile
                    if self._unknown(each for each in wanted if each[0] is problem):
                        self._measure_one(problem, tried[problem], start + self._left)
                known = self._tables.get(problem.subject)
                chosen = choose_by_layouts(known.measurements if known else (), self.policy)
                problem.release({m.key for m in chosen.values()})
                bar.update(problem.work)
                if self._left <= 0:
                    break
        bench.release()

    def _measure_one(self, problem: Problem, tried: Iterable[Candidate], deadline: float) -> None:
        """Measure a problem and keep that; warn where memory does not suffice."""
        these = None if self.mode == "exhaustive" else tried
        try:
            new = measure(problem, deadline, self.clock, these)
        except MemoryError as error:  # the function itself may need less
            warn_once(
                f"{problem.kind} {problem.subject} could not be measured ({error}), so a heuristic "
                "chooses its algorithm",
                cause="memory for measurements",
            )
            return
        if new:  # at once: an interrupt loses no more than what is being measured
            self._keep([(problem, new)])

    @contextlib.contextmanager
    def _turn(self) -> Iterator[float]:
        """Measure alone, once others have measured: side by side, times are wrong.

        Gives the time at which it begins, and counts what passes until its end.  A session waits no
        longer in all than it may measure: another process may have been stopped.
        """
        with contextlib.ExitStack() as held:
            start = self.clock()
            if self.store:
                alone = held.enter_context(self.store.turn(self._patience))
                self._patience -= self.clock() - start if alone else self._patience
                start = self.clock()
            yield start
            self.spent += self.clock() - start

    def _keep(self, tables: Sequence[tuple[Problem, ProblemTable]]) -> None:
        """Use tables from now on, with what is known already, on disk or else in this process."""
        entries = []
        for problem, new in tables:
            log.debug("%s: %s %s", new.origin, problem.kind, problem.subject)
            known = self._tables.get(problem.subject)
            entries.append(self._use(problem, new.merged(known) if known else new))
        kept = self.store and self.store.keep(entries, self.merge)
        for entry in entries:
            if kept:
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
        store = self.store
        for entry in store.nearest(problem.kind, problem.subject) if store else ():
            if differ := differences(self.environment, dict(entry.environment)):
                text += f" (elsewhere it is: {'; '.join(differ)})"
                break
        return f'{text}; compile once with autotune="tune", or load a cache that has it'


def _kernels(candidates: Iterable[Candidate]) -> Iterator[Runner]:
    for candidate in candidates:
        with contextlib.suppress(Exception):  # of whatever library: the trial notes it
            yield candidate.kernel
