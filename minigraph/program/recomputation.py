"""Recomputation: a program within a limit of memory, at the price of time.

What the forward pass computes waits in memory for the backward pass.  Instead, a result may be
dropped after its last early use and computed again right before its next one (Chen et al.,
"Training Deep Nets with Sublinear Memory Cost", 2016).  As long as the memory at the fullest step
exceeds the limit, the result that costs the fewest seconds per byte goes.

The lives of all results follow from the order in which steps run.  Each choice adds steps to that
order; lowering the graph that is made of it shows what they bring.
"""

from __future__ import annotations

import itertools
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import Array, Graph, Node
from minigraph.graph.location import Within
from minigraph.passes.notes import PassRecord
from minigraph.passes.overlap import communicates
from minigraph.program.lower import execution_order
from minigraph.program.memory import fullest_step
from minigraph.program.steps import Buffer, MemorySpace, Program, Step, round_up

BYTES, OPERATIONS = 1e10, 5e10  # a second, of steps that were not measured
ATTEMPTS = 8  # the target is lowered so often if the program still exceeds the limit
LOWER = 0.95  # times as large is the next target, at most
LONGEST = 64  # ops that may be repeated for one result


def within(
    limit: int,
    program: Program,
    results: int,
    lowered: Callable[[Graph, AbstractSet[Node]], Program],
    work: Callable[[Step], tuple[int, int]],
) -> Program:
    """Return the program with an arena of at most `limit` bytes, recomputing what has to be.

    results  how many outputs of the program's graph the caller gets
    lowered  returns the program of a rewritten graph, whose nodes of the second set are run in the
             order in which they were made
    work     returns the bytes that a step moves, and its floating-point operations

    Raises GraphError if recomputation does not reach the limit.
    """
    if program.arena_bytes <= limit:
        return program
    start, arena_bytes = time.perf_counter(), operator.attrgetter("arena_bytes")
    seconds = {step: _seconds(step, *work(step)) for step in program.steps}
    least, schedule = program, _Schedule(program, seconds)
    target = schedule.peak * limit / program.arena_bytes
    for left in reversed(range(ATTEMPTS)):
        reached = schedule.reduce(target if left else 0)
        graph, again = _rewritten(program, schedule, results)
        made = lowered(graph, again)
        if made.arena_bytes > limit:
            made = min(made, lowered(graph, set()), key=arena_bytes)
        least = min(least, made, key=arena_bytes)
        if made.arena_bytes <= limit:
            fired = Counter(step.node.op.name for step, again in schedule.runs if again)
            before, after = len(program.graph.order), len(graph.order)
            took = time.perf_counter() - start
            made.recomputed = PassRecord("recompute", before, after, took, dict(fired))
            return made
        if not reached:
            break
        target *= min(limit / made.arena_bytes, LOWER)
    raise GraphError(
        f"graph_opt.memory_limit allows {limit} bytes of intermediate results; without it they "
        f"take {program.arena_bytes}, and recomputation brings them down to "
        f"{least.arena_bytes}: {fullest_step(least)}. Raise the limit or take a smaller batch"
    )


Runs = Sequence[tuple[Step, bool]]  # each with whether the program has run the step before


@dataclass(eq=False)
class _Life:
    """A result in the arena: made by run `first`, read by the runs `uses`, in order.

    inherits  whether it takes over the memory of an input of the step that makes it
    """

    buffer: Buffer
    first: int
    inherits: bool
    uses: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return round_up(self.buffer.nbytes)

    @property
    def last(self) -> int:
        return self.uses[-1] if self.uses else self.first


class _Schedule:
    """Steps in the order in which they run.  Who reads a result reads that of its latest run.

    runs   the steps, some of them again
    lives  of the results by buffer, one for each run that makes it
    usage  bytes that are taken at each run
    """

    def __init__(self, program: Program, seconds: Mapping[Step, float]) -> None:
        self.runs: Runs = [(step, False) for step in program.steps]
        self.seconds = seconds
        self.graph = set(program.graph)
        self.maker = {b: s for s in program.steps for b in s.writes if b.space is MemorySpace.ARENA}
        self._outputs = [v.buffer for v in (*program.outputs, *(v for _, v in program.updates))]
        self._heirs = {b.successor for b in program.buffers if b.successor}
        self._overwriting = {
            b.node: s for s in program.steps for b in s.writes if b.space is MemorySpace.PARAMETER
        }
        self.lives, self.usage = self._simulate(self.runs)

    @property
    def peak(self) -> int:
        return int(self.usage.max())

    def _simulate(self, runs: Runs) -> tuple[dict[Buffer, list[_Life]], Array]:
        lives: dict[Buffer, list[_Life]] = {b: [] for b in self.maker}
        changes = np.zeros(len(runs) + 2, np.int64)
        for now, (step, again) in enumerate(runs):
            for buffer in lives.keys() & step.reads.keys():
                lives[buffer][-1].uses.append(now)
            for buffer in lives.keys() & step.writes.keys():
                lives[buffer].append(_Life(buffer, now, buffer in self._heirs and not again))
            changes[now] += round_up(step.scratch.nbytes)
            changes[now + 1] -= round_up(step.scratch.nbytes)
        for buffer in self._outputs:
            if buffer in lives:
                lives[buffer][-1].uses.append(len(runs))
        for life in itertools.chain.from_iterable(lives.values()):
            changes[life.first + life.inherits] += life.size
            changes[life.last + 1] -= life.size
        return lives, changes.cumsum()

    def reduce(self, target: float) -> bool:
        """Repeat steps until all runs keep within `target` bytes; return whether they do."""
        while self.peak > target:
            offers = sorted(self._offers(int(self.usage.argmax())), key=lambda offer: offer[0])
            if not any(self._accepts(at, steps) for _, at, steps in offers):
                return False
        return True

    def _offers(self, full: int) -> Iterator[tuple[float, int, list[Step]]]:
        """Yield what could be dropped at run `full`: seconds per byte, and what to run when."""
        for life in itertools.chain.from_iterable(self.lives.values()):
            if not life.first < full <= life.last or full in life.uses:  # else it only waits there
                continue
            at = next(use for use in life.uses if use > full)
            if at < len(self.runs) and life.size:
                steps = self._again(self.maker[life.buffer], full, at)
                if steps:
                    yield sum(self.seconds[step] for step in steps) / life.size, at, steps

    def _again(self, step: Step, full: int, at: int) -> list[Step]:
        """Return the steps to run before run `at` for a result, with nothing kept at `full` for it.

        Empty if there are too many, or one cannot run again.
        """
        found: dict[Step, None] = {}
        waiting = [step]
        while waiting:
            step = waiting[-1]
            missing = [b for b in step.reads if not self._available(b, full, at)]
            if not all(b in self.maker for b in missing) or not self._repeatable(step):
                return []
            makers = [self.maker[b] for b in missing if self.maker[b] not in found]
            if len(found) + len(waiting) > LONGEST:
                return []
            if makers:
                waiting += makers
            else:
                found[waiting.pop()] = None
        return [*found]

    def _repeatable(self, step: Step) -> bool:
        inside = all(view.buffer.space is MemorySpace.ARENA for view in step.outputs)
        once = step.kernel.refuses or communicates(step.node)
        return inside and not once and step.node in self.graph

    def _available(self, buffer: Buffer, full: int, at: int) -> bool:
        """Whether a buffer can be read before run `at`, perhaps because its result lives longer."""
        if buffer in self.lives:
            return next(v for v in reversed(self.lives[buffer]) if v.first < at).last >= full
        writer = self._overwriting.get(buffer.node)
        unwritten = all(step is not writer for step, _ in self.runs[:at])
        return buffer.space is not MemorySpace.ARENA and unwritten

    def _accepts(self, at: int, steps: Sequence[Step]) -> bool:
        """Let steps run again before run `at` if fewer runs are as full as the fullest is."""
        runs = [*self.runs[:at], *((step, True) for step in steps), *self.runs[at:]]
        lives, usage = self._simulate(runs)
        before, after = ((each.max(), (each >= self.peak).sum()) for each in (self.usage, usage))
        if after >= before:
            return False
        self.runs, self.lives, self.usage = runs, lives, usage
        return True


def _rewritten(program: Program, schedule: _Schedule, results: int) -> tuple[Graph, set[Node]]:
    """Return the graph in which steps run as in the schedule, and the nodes that run again."""
    maker = {step.node: step for step in program.steps if step.node in schedule.graph}
    orders = execution_order(program.graph, results)
    latest: dict[Step, Node] = {}
    viewed: dict[tuple[Node, Node], Node] = {}
    again: set[Node] = set()

    def current(x: Node) -> Node:
        """Return the node that now has the value of x."""
        if x in maker:
            return latest[maker[x]]
        if not x.inputs:
            return x
        inputs = tuple(map(current, x.inputs))  # of a view, an item
        key = x, inputs[0]
        if key not in viewed:
            viewed[key] = x.replace(inputs)
        return viewed[key]

    for now, (step, repeated) in enumerate(schedule.runs):
        node = step.node
        if node not in maker:  # a copy that lowering has put there
            continue
        inputs = tuple(map(current, node.inputs))
        if repeated:  # nodes run in the order in which they are made
            firsts = (s.node for s, once_more in schedule.runs[now:] if not once_more)
            user = next(first for first in firsts if first in maker)
            with Within(source=node.source, order=orders[user][0]):
                latest[step] = Node(node.op, inputs, node.specs)
            again.add(latest[step])
        else:
            latest[step] = node.replace(inputs)
    return Graph(program.graph.inputs, tuple(map(current, program.graph.outputs))), again


def _seconds(step: Step, moved: int, operations: int) -> float:
    """Return the time of a step as it was measured, else an estimate."""
    choice = step.choice
    if choice and choice.measurement and choice.measurement.seconds:
        return choice.measurement.seconds
    return moved / BYTES + operations / OPERATIONS
