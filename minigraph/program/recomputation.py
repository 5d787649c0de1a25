"""Recomputation: trade time for memory until a program keeps its memory limit.

The backward pass reads results of the forward pass, which occupy memory until then.  A result can
be freed after its last use in the forward pass, and computed again right before its next use (Chen
et al., "Training Deep Nets with Sublinear Memory Cost", 2016).  While the peak of memory exceeds
the limit, the result with the lowest cost, in seconds per byte, is recomputed.

The lives of results follow from the execution order.  Each recomputation adds steps to that order;
lowering the rewritten graph then gives the actual size of the arena.
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

BYTES_PER_SECOND, FLOPS_PER_SECOND = 1e10, 5e10  # of steps without a measurement
MAX_ATTEMPTS = 8  # targets that are tried while the program exceeds the limit
MAX_TARGET_RATIO = 0.95  # largest ratio of a target to the previous target
MAX_REPEATED_STEPS = 64  # steps that may be repeated for one result


def within_limit(
    limit: int,
    program: Program,
    results: int,
    lowered: Callable[[Graph, AbstractSet[Node]], Program],
    cost: Callable[[Step], tuple[int, int]],
) -> Program:
    """Return the program with an arena of at most `limit` bytes, by recomputation if needed.

    results  number of outputs of the program's graph that the caller gets
    lowered  lowers a rewritten graph; the nodes of its second argument are pinned, as in `lower`
    cost     returns the bytes that a step moves, and its floating-point operations

    Raises GraphError if recomputation does not reach the limit.
    """
    if program.arena_bytes <= limit:
        return program
    start, arena_bytes = time.perf_counter(), operator.attrgetter("arena_bytes")
    seconds = {step: _seconds(step, *cost(step)) for step in program.steps}
    smallest, schedule = program, _Schedule(program, seconds)
    target = schedule.peak * limit / program.arena_bytes
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        reached = schedule.reduce(target if attempts_left else 0)
        graph, repetitions = _rewritten(program, schedule, results)
        candidate = lowered(graph, repetitions)
        if candidate.arena_bytes > limit:
            candidate = min(candidate, lowered(graph, set()), key=arena_bytes)
        smallest = min(smallest, candidate, key=arena_bytes)
        if candidate.arena_bytes <= limit:
            fired = Counter(step.node.op.name for step, repeats in schedule.runs if repeats)
            sizes = len(program.graph.order), len(graph.order)
            elapsed = time.perf_counter() - start
            candidate.recomputed = PassRecord("recompute", *sizes, elapsed, dict(fired))
            return candidate
        if not reached:
            break
        target *= min(limit / candidate.arena_bytes, MAX_TARGET_RATIO)
    raise GraphError(
        f"graph_opt.memory_limit allows {limit} bytes of intermediate results; without it they "
        f"take {program.arena_bytes}, and recomputation brings them down to "
        f"{smallest.arena_bytes}: {fullest_step(smallest)}. Raise the limit or use a smaller batch"
    )


Runs = Sequence[tuple[Step, bool]]  # each with whether it repeats the step


@dataclass(eq=False)
class _Lifetime:
    """A result in the arena, computed by run `first` and read by the runs `uses`, in order.

    inherits  whether the result takes over the memory of its step's input
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
    """Steps in execution order, with repetitions; a step reads the latest run's result.

    runs   steps in execution order
    lives  of the results by buffer, one for each run of the step that makes it
    usage  bytes in use at each run
    """

    def __init__(self, program: Program, seconds: Mapping[Step, float]) -> None:
        self.runs: Runs = [(step, False) for step in program.steps]
        self.seconds = seconds
        self.graph = set(program.graph)
        self.maker = {b: s for s in program.steps for b in s.writes if b.space is MemorySpace.ARENA}
        self._outputs = [v.buffer for v in (*program.outputs, *(v for _, v in program.updates))]
        self._successors = {b.successor for b in program.buffers if b.successor}
        self._writers = {
            b.node: s for s in program.steps for b in s.writes if b.space is MemorySpace.PARAMETER
        }
        self.lives, self.usage = self._simulate(self.runs)

    @property
    def peak(self) -> int:
        return int(self.usage.max())

    def _simulate(self, runs: Runs) -> tuple[dict[Buffer, list[_Lifetime]], Array]:
        lives: dict[Buffer, list[_Lifetime]] = {b: [] for b in self.maker}
        changes = np.zeros(len(runs) + 2, np.int64)
        for now, (step, is_repetition) in enumerate(runs):
            for buffer in lives.keys() & step.reads.keys():
                lives[buffer][-1].uses.append(now)
            for buffer in lives.keys() & step.writes.keys():
                inherits = buffer in self._successors and not is_repetition
                lives[buffer].append(_Lifetime(buffer, now, inherits))
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
        """Repeat steps until the peak is at most `target` bytes; return whether it is."""
        while self.peak > target:
            candidates = self._candidates(int(self.usage.argmax()))
            by_cost = sorted(candidates, key=operator.itemgetter(0))
            if not any(self._try_repetition(run, steps) for _, run, steps in by_cost):
                return False
        return True

    def _candidates(self, peak_run: int) -> Iterator[tuple[float, int, list[Step]]]:
        """Yield recomputations that free memory at run `peak_run`.

        Each is its cost in seconds per byte, the run before which it repeats steps, and the steps.
        """
        for life in itertools.chain.from_iterable(self.lives.values()):
            if not life.first < peak_run <= life.last or peak_run in life.uses:
                continue
            run = next(use for use in life.uses if use > peak_run)
            if run < len(self.runs) and life.size:
                steps = self._steps_to_repeat(self.maker[life.buffer], peak_run, run)
                if steps:
                    yield sum(self.seconds[step] for step in steps) / life.size, run, steps

    def _steps_to_repeat(self, step: Step, peak_run: int, run: int) -> list[Step]:
        """Return the steps that compute a result before `run`, from values alive at `peak_run`.

        Empty if they are too many, or one of them cannot run again.
        """
        steps: dict[Step, None] = {}
        stack = [step]
        while stack:
            step = stack[-1]
            missing = [b for b in step.reads if not self._available(b, peak_run, run)]
            if not all(b in self.maker for b in missing) or not self._repeatable(step):
                return []
            makers = [self.maker[b] for b in missing if self.maker[b] not in steps]
            if len(steps) + len(stack) > MAX_REPEATED_STEPS:
                return []
            if makers:
                stack += makers
            else:
                steps[stack.pop()] = None
        return [*steps]

    def _repeatable(self, step: Step) -> bool:
        in_arena = all(view.buffer.space is MemorySpace.ARENA for view in step.outputs)
        runs_once = step.kernel.validates_input or communicates(step.node)
        return in_arena and not runs_once and step.node in self.graph

    def _available(self, buffer: Buffer, peak_run: int, run: int) -> bool:
        """Whether `run` can read a buffer: alive at `peak_run`, or unchanged outside the arena."""
        if buffer in self.lives:
            return next(v for v in reversed(self.lives[buffer]) if v.first < run).last >= peak_run
        writer = self._writers.get(buffer.node)
        is_unchanged = all(step is not writer for step, _ in self.runs[:run])
        return buffer.space is not MemorySpace.ARENA and is_unchanged

    def _try_repetition(self, run: int, steps: Sequence[Step]) -> bool:
        """Repeat steps before `run` if that lowers the peak, or the number of runs at the peak."""
        runs = [*self.runs[:run], *((step, True) for step in steps), *self.runs[run:]]
        lives, usage = self._simulate(runs)
        before, after = ((u.max(), (u >= self.peak).sum()) for u in (self.usage, usage))
        if after >= before:
            return False
        self.runs, self.lives, self.usage = runs, lives, usage
        return True


def _rewritten(program: Program, schedule: _Schedule, results: int) -> tuple[Graph, set[Node]]:
    """Return the graph with a node for each run of the schedule, and the nodes of repetitions."""
    maker = {step.node: step for step in program.steps if step.node in schedule.graph}
    orders = execution_order(program.graph, results)
    latest: dict[Step, Node] = {}
    replaced_views: dict[tuple[Node, Node], Node] = {}
    repetitions: set[Node] = set()

    def current(x: Node) -> Node:
        """Return the node of the latest run that computes `x`."""
        if x in maker:
            return latest[maker[x]]
        if not x.inputs:
            return x
        inputs = tuple(map(current, x.inputs))  # of a view, an item
        key = x, inputs[0]
        if key not in replaced_views:
            replaced_views[key] = x.replace(inputs)
        return replaced_views[key]

    for now, (step, is_repetition) in enumerate(schedule.runs):
        node = step.node
        if node not in maker:  # a copy, which lowering will insert again
            continue
        inputs = tuple(map(current, node.inputs))
        if is_repetition:  # it takes the order of the next step that is no repetition
            following = (s.node for s, repeats in schedule.runs[now:] if not repeats)
            next_node = next(other for other in following if other in maker)
            with Within(source=node.source, order=orders[next_node][0]):
                latest[step] = Node(node.op, inputs, node.specs)
            repetitions.add(latest[step])
        else:
            latest[step] = node.replace(inputs)
    return Graph(program.graph.inputs, tuple(map(current, program.graph.outputs))), repetitions


def _seconds(step: Step, nbytes: int, operations: int) -> float:
    """Return the measured seconds of a step, else an estimate."""
    choice = step.choice
    if choice and choice.measurement and choice.measurement.seconds:
        return choice.measurement.seconds
    return nbytes / BYTES_PER_SECOND + operations / FLOPS_PER_SECOND
