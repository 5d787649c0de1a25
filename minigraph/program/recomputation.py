"""Recomputation: a program within a limit of memory, at the price of time.

What the forward pass computes waits in memory for the backward pass.  Instead, a result may be
dropped after its last early use and computed again right before its next one (Chen et al.,
"Training Deep Nets with Sublinear Memory Cost", 2016).  As long as the memory at the fullest step
exceeds the limit, the result that costs the fewest seconds per byte goes.

The lives of all results are known from the program without recomputation.  A model of these lives
makes the choices; lowering the rewritten graph shows what they bring.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from minigraph.errors import GraphError
from minigraph.graph import Graph, Node
from minigraph.graph.location import Within
from minigraph.passes.notes import PassRecord
from minigraph.passes.overlap import communicates
from minigraph.program.memory import fullest_step
from minigraph.program.schedule import execution_order
from minigraph.program.steps import Buffer, MemorySpace, Program, Step, View, round_up

BYTES, OPERATIONS = 1e10, 5e10  # a second, of steps that were not measured
ATTEMPTS = 8  # the model's target is lowered so often if the program still exceeds the limit
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
    start = time.perf_counter()
    seconds = {step: _seconds(step, *work(step)) for step in program.steps}
    graph, least = program.graph, program
    model = _Model(program, seconds)
    target = model.peak * limit / program.arena_bytes
    for _ in range(ATTEMPTS):
        reached = model.reduce(target)
        rewrite = _CloneRewrite(program, model, results)
        rewritten = rewrite.graph
        made = lowered(rewritten, {*rewrite.cloned.values()})
        if made.arena_bytes > limit:
            made = min(made, lowered(rewritten, set()), key=_arena_bytes)
        least = min(least, made, key=_arena_bytes)
        if made.arena_bytes <= limit:
            fired = Counter(clone.step.node.op.name for clone in model.clones)
            before, after = len(graph.order), len(rewritten.order)
            took = time.perf_counter() - start
            made.recomputed = PassRecord("recompute", before, after, took, dict(fired))
            return made
        if not reached:
            break
        target *= limit / made.arena_bytes
        model = _Model(program, seconds)
    raise GraphError(
        f"graph_opt.memory_limit allows {limit} bytes of intermediate results; without it they "
        f"take {program.arena_bytes}, and recomputation brings them down to "
        f"{least.arena_bytes}: {fullest_step(least)}. Raise the limit or take a smaller batch"
    )


@dataclass(eq=False)
class _Lifetime:
    """A result in the arena: made at step `first`, read at the steps `uses`, in order.

    inherits  whether it takes over the memory of an input of the step that makes it
    made      the clone that makes it; None for what the step of the program makes
    """

    buffer: Buffer
    first: int
    uses: list[int]
    inherits: bool = False
    made: _Clone | None = None

    @property
    def size(self) -> int:
        return round_up(self.buffer.nbytes)

    @property
    def last(self) -> int:
        return self.uses[-1] if self.uses else self.first

    def gap(self, at: int) -> int | None:
        """Return the next use after step `at`, if the result only waits there."""
        later = [use for use in self.uses if use > at]
        waits = self.first < at and at not in self.uses
        return later[0] if waits and later else None


@dataclass(eq=False)
class _Clone:
    """A step that runs once more, right before step `at`."""

    step: Step
    at: int


@dataclass
class _Plan:
    """How to have a result again at a step.

    clones   what to run for it, in this order
    reads    results that the clones read, which have to live until that step
    """

    clones: list[Step] = field(default_factory=list)
    reads: list[_Lifetime] = field(default_factory=list)
    seconds: float = 0.0


class _Model:
    """The lives of the results of a program while some are recomputed.

    clones   what is recomputed
    usage    bytes that are taken at each step
    passing  those that only clones take, right before the step
    """

    def __init__(self, program: Program, seconds: Mapping[Step, float]) -> None:
        self.steps = program.steps
        self.seconds = seconds
        self.clones: list[_Clone] = []
        self.maker: dict[Buffer, Step] = {}
        self.graph = set(program.graph)
        self._overwritten = _overwritten(program)
        uses: dict[Buffer, list[int]] = defaultdict(list)
        for now, step in enumerate(self.steps):
            for buffer in _buffers(step.outputs):
                self.maker[buffer] = step
            for buffer in _buffers(step.inputs):
                uses[buffer].append(now)
        end = len(self.steps)
        for view in (*program.outputs, *(view for _, view in program.updates)):
            uses[view.buffer].append(end)
        heirs = {b.successor for b in program.buffers if b.successor}
        self.versions = {
            b: [_Lifetime(b, b.first, sorted(set(uses[b])), b in heirs)]
            for b in program.buffers
            if b.space is MemorySpace.ARENA and b in self.maker
        }
        self.passing = np.zeros(end + 1, np.int64)
        self.usage = np.zeros(end + 1, np.int64)
        for now, step in enumerate(self.steps):
            self.usage[now] += round_up(step.scratch.nbytes)
        for (value,) in self.versions.values():
            self._count(value, 1)

    @property
    def peak(self) -> int:
        return int(self.usage.max())

    def reduce(self, target: float) -> bool:
        """Recompute until all steps keep within `target` bytes; return whether they do."""
        while self.peak > target:
            fullest = int(self.usage.argmax())
            found = min(self._offers(fullest), key=lambda offer: offer[0], default=None)
            if found is None:
                return False
            _, value, at, plan = found
            self._apply(value, at, plan)
        return True

    def _offers(self, full: int) -> Iterator[tuple[float, _Lifetime, int, _Plan]]:
        """Yield what could be dropped at the step `full`: seconds per byte, and how."""
        for versions in self.versions.values():
            for value in versions:
                at = value.gap(full)
                if at is None or at == len(self.steps) or not value.size:
                    continue
                plan = self._plan(self.maker[value.buffer], full, at)
                if plan is not None and self._fits(plan, full, at):
                    yield plan.seconds / value.size, value, at, plan

    def _plan(self, step: Step, full: int, at: int) -> _Plan | None:
        """Return how to run `step` again at the step `at`, with nothing kept at `full` for it."""
        plan = _Plan()
        found: dict[Step, list[Step]] = {}

        def again(step: Step) -> list[Step] | None:
            """Return the steps that have to run for one to run again, which is the last of them."""
            if step in found:
                return found[step]
            if len(found) == LONGEST or not self._repeatable(step):
                return None
            found[step] = []
            parts = []
            for buffer in _buffers(step.inputs):
                if self._available(buffer, full, at, plan):
                    continue
                part = again(self.maker[buffer]) if buffer in self.maker else None
                if part is None:
                    return None
                parts.append(part)
            if len(parts) > 1:  # what takes the most besides its result comes first
                parts.sort(key=lambda part: _passing(part) - _made(part[-1]), reverse=True)
            found[step] = [*dict.fromkeys(itertools.chain(*parts, [step]))]
            return found[step]

        clones = again(step)
        if clones is None:
            return None
        plan.clones = clones
        plan.seconds = sum(self.seconds[clone] for clone in clones)
        return plan

    def _repeatable(self, step: Step) -> bool:
        inside = all(view.buffer.space is MemorySpace.ARENA for view in step.outputs)
        once = step.kernel.refuses or communicates(step.node)
        return inside and not once and step.node in self.graph

    def _available(self, buffer: Buffer, full: int, at: int, plan: _Plan) -> bool:
        """Whether `buffer` can be read at the step `at`, perhaps because it lives longer."""
        if buffer not in self.versions:
            return buffer.space is not MemorySpace.ARENA and at <= self._overwritten.get(buffer, at)
        value = next(v for v in reversed(self.versions[buffer]) if v.first <= at)
        if value.last < full:
            return False
        plan.reads.append(value)
        return True

    def _fits(self, plan: _Plan, full: int, at: int) -> bool:
        """Whether no step becomes as full as the step `full` is."""
        limit = self.usage[full]
        if self.usage[at] - self.passing[at] + _passing(plan.clones) >= limit:
            return False
        return all(
            self.usage[v.last + 1 : at + 1].max(initial=0) + v.size < limit for v in plan.reads
        )

    def _apply(self, value: _Lifetime, at: int, plan: _Plan) -> None:
        for old in plan.reads:
            if at not in old.uses:
                self._count(old, -1)
                bisect.insort(old.uses, at)
                self._count(old, 1)
        more = max(0, _passing(plan.clones) - int(self.passing[at]))
        self.passing[at] += more
        self.usage[at] += more
        for step in plan.clones:
            clone = _Clone(step, at)
            self.clones.append(clone)
            for buffer in _buffers(step.outputs):
                self._split(buffer, at, clone)

    def _split(self, buffer: Buffer, at: int, clone: _Clone) -> None:
        """Let a clone at step `at` make what is read there and later."""
        versions = self.versions[buffer]
        old = next(v for v in reversed(versions) if v.first <= at)
        self._count(old, -1)
        later = [use for use in old.uses if use >= at]
        old.uses = [use for use in old.uses if use < at]
        new = _Lifetime(buffer, at, later, made=clone)
        versions.insert(versions.index(old) + 1, new)
        self._count(old, 1)
        self._count(new, 1)

    def _count(self, value: _Lifetime, sign: int) -> None:
        if value.made and not value.uses:
            return  # read by another clone at once: see `passing`
        first = value.first + value.inherits
        self.usage[first : value.last + 1] += sign * value.size


def _arena_bytes(program: Program) -> int:
    return program.arena_bytes


def _seconds(step: Step, moved: int, operations: int) -> float:
    """Return the time of a step as it was measured, else an estimate."""
    choice = step.choice
    if choice and choice.measurement and choice.measurement.seconds:
        return choice.measurement.seconds
    return moved / BYTES + operations / OPERATIONS


def _buffers(views: Sequence[View]) -> dict[Buffer, None]:
    """Return the buffers of views, each once, in order."""
    return dict.fromkeys(view.buffer for view in views)


def _made(step: Step) -> int:
    """Return the bytes of a step's results."""
    return sum(round_up(buffer.nbytes) for buffer in _buffers(step.outputs))


def _passing(steps: Sequence[Step]) -> int:
    """Return the most bytes that steps take at once, where each result lives until its last use."""
    last = {view.buffer: i for i, step in enumerate(steps) for view in step.inputs}
    most = now = 0
    for i, step in enumerate(steps):
        most = max(most, now + _made(step) + round_up(step.scratch.nbytes))
        now += _made(step)
        for earlier in steps[:i]:
            for buffer in _buffers(earlier.outputs):
                if last.get(buffer) == i:
                    now -= round_up(buffer.nbytes)
    return most


def _overwritten(program: Program) -> dict[Buffer, int]:
    """Return for each parameter's buffer the step that overwrites it, if one does."""
    written = {
        view.buffer.node: now
        for now, step in enumerate(program.steps)
        for view in step.outputs
        if view.buffer.space is MemorySpace.PARAMETER
    }
    return {b: written[b.node] for b in program.buffers if b.node in written}


class _CloneRewrite:
    """Makes the graph in which the clones of a model run; `graph` is the result."""

    def __init__(self, program: Program, model: _Model, results: int) -> None:
        self.model = model
        self.maker = {step.node: step for step in program.steps if step.node in model.graph}
        self.new: dict[Node, Node] = {}
        self.cloned: dict[_Clone, Node] = {}
        self.viewed: dict[tuple[Node, Node], Node] = {}
        order = execution_order(program.graph, results)
        clones: dict[int, list[_Clone]] = defaultdict(list)
        for clone in model.clones:
            clones[clone.at].append(clone)
        for now, step in enumerate(program.steps):
            if step.node in self.maker:  # not a copy that lowering put there
                self.order = order[step.node][0]
                for clone in clones[now]:  # nodes run in the order in which they are made
                    self._latest(clone.step, now)
                self.new[step.node] = step.node.replace(self._inputs(step.node, now))
        end = len(program.steps)
        outputs = tuple(self._at(y, end) for y in program.graph.outputs)
        self.graph = Graph(program.graph.inputs, outputs)

    def _inputs(self, node: Node, now: int) -> tuple[Node, ...]:
        return tuple(self._at(x, now) for x in node.inputs)

    def _at(self, x: Node, now: int) -> Node:
        """Return the node that has the value of `x` at a step."""
        if x in self.maker:
            return self._latest(self.maker[x], now)
        if not x.inputs:
            return x
        inputs = self._inputs(x, now)  # of a view, an item
        key = x, inputs[0]
        if key not in self.viewed:
            self.viewed[key] = x.replace(inputs)
        return self.viewed[key]

    def _latest(self, step: Step, now: int) -> Node:
        versions = self.model.versions.get(step.outputs[0].buffer, [])
        made = next((v.made for v in reversed(versions) if v.first <= now), None)
        if made is None:
            return self.new[step.node]
        if made not in self.cloned:
            node = step.node
            inputs = self._inputs(node, now)
            with Within(source=node.source, order=self.order):
                self.cloned[made] = Node(node.op, inputs, node.specs)
        return self.cloned[made]
