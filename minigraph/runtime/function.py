"""A compiled function: a program with its memory, called with arrays."""

from __future__ import annotations

import functools
import logging
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from minigraph.arguments import FilePath, at_least, checked
from minigraph.autotune.session import Told
from minigraph.cache import Entry
from minigraph.distributed import World
from minigraph.errors import warn_once
from minigraph.graph import Array, Claim, Constant, Node, Parameter
from minigraph.inspect.description.describe import Past, describe
from minigraph.inspect.description.record import Description
from minigraph.inspect.dot import by_layer, every_step
from minigraph.inspect.page.document import to_html
from minigraph.inspect.profile import Profile, profiled
from minigraph.inspect.report import (
    GENERATED,
    LEAVES,
    Report,
    algorithm,
    generated,
    layer_uses,
    memory_use,
    preformatted,
)
from minigraph.inspect.roofline import speeds
from minigraph.ops.random import SEED, STEP
from minigraph.options import ineffective, num_threads
from minigraph.passes.notes import PassRecord
from minigraph.platform.signals import held
from minigraph.platform.text_file import write_text
from minigraph.program import NOTHING_AHEAD, Ahead, Backend, Done, Program, Step, Timing
from minigraph.program.choices import Choices
from minigraph.program.memory import in_use
from minigraph.runtime import cache_file
from minigraph.runtime.call_counter import CallCounter
from minigraph.runtime.counted import FUNCTIONS, Counted
from minigraph.runtime.inputs import as_input, in_order
from minigraph.runtime.stage import timed

log = logging.getLogger(__name__)


class Lowered(NamedTuple):
    """A program, and what the passes did of whose graph it is made."""

    program: Program
    passes: list[PassRecord]


@dataclass(frozen=True)
class Compiled:
    """What a function is made of.

    returned     makes what a call returns of the list of results
    reads        the parameters that it uses
    changes      those that it updates
    environment  returns what its fingerprint covers, and the fingerprint, in words
    seconds      that each stage of compiling took
    lowered      returns the program, with the algorithms that are best so far; notes what took how
                 many seconds
    past         runs the passes again and returns what they made, for whoever wants to look
    choices      what has chosen them
    world        the processes that run it together, if there are several
    counter      what the function shares with those of other sizes, if there are any
    arenas       returns those of these
    ahead        memory for an arena that was made ready meanwhile
    """

    inputs: list[Node]
    returned: Callable[[list[Array]], Any]
    reads: Sequence[Parameter]
    changes: Sequence[Parameter]
    backend: Backend
    options: Mapping[str, Any]
    environment: Callable[[], Mapping[str, str]]
    seconds: dict[str, float]
    lowered: Callable[[dict[str, float]], Lowered]
    past: Callable[[], Past]
    choices: Choices
    world: World | None = None
    counter: CallCounter | None = None
    arenas: Callable[[], Sequence[Any]] = tuple
    ahead: Ahead = NOTHING_AHEAD


CALLED = at_least(1)


PROFILED = 5  # calls, unless a profile is asked for more or fewer


STEP_BYTES = 16 << 10  # what a step takes beside arrays: objects of Python, above all


APART = 0x9E3779B97F4A7C15  # between the seeds of processes: 2**64 over the golden ratio


class Function(Counted):
    """What `comp_graph().compile` returns: call it with an array for each input.

    Inputs are given in order or by name: NumPy arrays, or anything with `__array__` or DLPack.  The
    results, which belong to the caller, are NumPy arrays, on a CUDA device CuPy arrays.
    A call is done, with all updates, or not done, whatever interrupts it.  Calls from several
    threads wait for each other where one changes a parameter that the other uses.

    >>> x, y = mg.input("x", (2,)), mg.input("y", (2,))
    >>> difference = cg.compile([x, y], x - y)
    >>> difference([1, 2], y=[3, 3])
    array([-2., -1.], dtype=float32)
    >>> difference.calls
    1
    """

    def __init__(self, compiled: Compiled) -> None:
        self._counter = compiled.counter or CallCounter(compiled.options["seed"])
        self._compiled = compiled
        self._inputs = compiled.inputs
        self._options = dict(compiled.options)
        self._backend = compiled.backend
        self._specs = [(x.spec.shape, x.spec.dtype) for x in compiled.inputs]
        self._last_profile: Profile | None = None
        self._claim = Claim((p.state for p in compiled.reads), (p.state for p in compiled.changes))
        self._profiled: list[Step] = []  # the steps of the last profile
        self._compile(compiled.seconds)

    def __repr__(self) -> str:
        names = ", ".join(f"{x.name}: {x.spec}" for x in self._inputs)
        steps = len(self._program.steps)
        return f"<function of ({names}) on {self._backend.device}, {steps} steps>"

    def _repr_html_(self) -> str:
        return preformatted(str(self.report()))

    def _compile(self, seconds: dict[str, float], arenas: Sequence[Any] = ()) -> None:
        """Run from now on the best program there is, in memory of its own or one of `arenas`."""
        lowered = self._compiled.lowered(seconds)
        seconds["bind"] = 0.0  # the last time counts
        with timed(seconds, "bind"):
            ahead = self._compiled.ahead.arenas(lowered.program.arena_bytes)
            arenas = [*self._compiled.arenas(), *arenas, *ahead]
            executor = self._backend.bind(lowered.program, arenas)
        for record in lowered.passes:
            log.debug("%s, %.3f s", record, record.seconds)
        took = ", ".join(f"{name} {s:.3f} s" for name, s in seconds.items())
        steps = len(lowered.program.steps)
        log.info("a function of %d steps on %s: %s", steps, self._backend.device, took)
        self._program, self._passes = lowered
        self._executor = executor
        feeds = [_feed(buffer.node, self._inputs) for buffer in self._program.inputs]
        # None: all, in their order
        self._feeds = None if feeds == [*range(len(self._inputs))] else feeds

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run once.  Raises GraphError, and leaves all parameters as they are, for bad input."""
        values = self._checked(args, kwargs)

        def work() -> list[Array]:
            results = self._run(values, self._executor)
            if self._executor.failures:
                self._recover()
            return results

        results = self._alone(work)
        return self._compiled.returned(results)

    def profile(self, /, *args: Any, calls: Any = PROFILED, **kwargs: Any) -> Profile:
        """Run some calls, one kernel at a time, and return how long each kernel took.

        calls  how many; the times are their medians.  An input of this name is given in order.

        For parameters and random ops it is one call: what the others change is undone.
        """
        values = self._checked(args, kwargs)
        repeats = CALLED.check("calls", calls) - 1
        runs: list[list[Timing]] = []

        def execute(inputs: Sequence[Array], done: Done) -> list[Array]:
            before = self._state()
            try:
                for _ in range(repeats):
                    runs.append(self._executor.profile(inputs)[1])
            finally:
                with held():
                    self._restore(before)
            results, timings = self._executor.profile(inputs, done)
            runs.append(timings)
            return results

        self._alone(lambda: self._run(values, execute))
        reached = speeds(self._backend, num_threads(self._options["num_threads"]))
        used = dict(zip(self._program.steps, in_use(self._program), strict=True))
        self._last_profile = profiled(runs, reached, used)
        self._profiled = list(dict.fromkeys(timing.step for timing in runs[0]))
        return self._last_profile

    # ------------------------------------------------------------ a call

    def _alone(self, work: Callable[[], list[Array]]) -> list[Array]:
        """Return the result of `work`, done while nobody changes what this function uses."""
        return self._claim.run(lambda: self._counter.alone(work))

    def _checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Array]:
        """Return a contiguous array for each input."""
        if kwargs or len(args) != len(self._specs):
            args = in_order(self._inputs, args, kwargs)
        values = list(args)
        for i, (value, (shape, dtype)) in enumerate(zip(values, self._specs, strict=True)):
            usable = (
                type(value) is np.ndarray
                and value.dtype is dtype
                and value.shape == shape
                and value.flags.carray
            )
            if not usable:
                values[i] = as_input(self._inputs[i], value, self._backend)
        return values

    def _run(self, values: list[Array], execute: Execute) -> list[Array]:
        inputs = values
        if self._feeds is not None:
            inputs = [feed(self) if callable(feed) else values[feed] for feed in self._feeds]
        count = functools.partial(operator.setitem, self._counter.calls, (), self.calls + 1)
        return execute(inputs, count)

    def _state(self) -> list[Array]:
        """Return the values of the parameters that a call changes."""
        return [p.numpy() for p in self._compiled.changes]

    def _restore(self, state: Sequence[Array]) -> None:
        for parameter, value in zip(self._compiled.changes, state, strict=True):
            parameter.state.write()[...] = value

    def _own_seed(self) -> Array:
        """Return the seed of this process's random ops: each of several drops out other values."""
        world = self._compiled.world
        if world is None:
            return self.seed
        return np.array((int(self.seed) + world.rank * APART) % 2**64, np.uint64)

    def _recover(self) -> None:
        """Take other algorithms from now on where the chosen ones have failed."""
        failures = dict(self._executor.failures)
        self._executor.failures.clear()
        for step, why in failures.items():
            warn_once(f"{step.node.op.name} {step.node.source}: {why}; NumPy has stood in for it")
        # Where a heuristic failed, there is nothing measured left to take.
        measured = {
            s.choice: why for s, why in failures.items() if s.choice and s.choice.measurement
        }
        for choice, why in measured.items():
            self._compiled.choices.quarantine(choice, why)
        if measured:
            self._compile(self._compiled.seconds, [self._executor.arena])

    # ------------------------------------------------------------ what it tells

    def report(self) -> Report:
        """Return what was compiled, and how; `print` it."""
        program = self._program
        steps = list(program.all_steps())
        graphs = [program.graph, *(step.kernel.body.graph for step in steps if step.kernel.body)]
        recomputed = [program.recomputed] if program.recomputed else []
        nodes = [node for graph in graphs for node in graph if not isinstance(node.op, LEAVES)]
        profile = self._last_profile
        times = {cost.name: cost.seconds for cost in profile.by_layer} if profile else {}
        return Report(
            device=self._backend.device,
            ops=Counter(node.op.name for node in nodes),
            steps=[
                (step.node.op.name, step.kernel.name, ", ".join(map(str, step.node.specs)))
                for step in steps
            ],
            makers=Counter(step.kernel.maker for step in steps),
            layers=layer_uses(program.steps, times),
            memory=memory_use(program),
            launches=self._executor.launches,
            syncs=self._executor.syncs,
            seconds=dict(self._compiled.seconds),
            fingerprint=self._compiled.environment()["fingerprint"],
            options=dict(self._options),
            ineffective=ineffective(self._options, self._backend.device),
            passes=[*self._passes, *recomputed],
            kernels=[generated(s) for s in steps if isinstance(s.node.op, GENERATED)],
            numpy=[
                f"{step.node} ({step.kernel.why_numpy}), made {step.node.source}"
                for step in steps
                if step.kernel.why_numpy
            ],
            stops=[stop for record in self._passes for stop in record.stops],
            algorithms=[a for a in map(algorithm, steps) if a],
            traffic=[t for t in (step.kernel.traffic for step in steps) if t],
        )

    def reports(self) -> list[Report]:
        """Return the report, in a list: a function of any size has one for each that it keeps."""
        return [self.report()]

    @checked
    def to_dot(self, path: FilePath, whole: bool = False) -> None:
        """Write the layers as a graph in Graphviz's language: `dot -Tsvg -O path` draws it.

        whole  draw every step, with all that it reads; for a large network Graphviz takes minutes
        """
        text = every_step(self._program) if whole else by_layer(self._program)
        write_text(path, text)

    def describe(self) -> Description:
        """Return one record of all that is known of the function, as pages and files keep it.

        It has the graph as written and after each pass, the steps, memory, algorithms, the texts of
        kernels, and the times of the last profile.  To make it, the passes run again.
        """
        profile = self._last_profile
        return describe(
            self._program,
            self._compiled.past(),
            self._backend,
            self._options,
            self._compiled.seconds,
            self._compiled.environment()["fingerprint"],
            list(zip(self._profiled, profile.kernels, strict=True)) if profile else (),
        )

    @checked
    def to_html(self, path: FilePath, beside: Annotated[Sequence[Any], FUNCTIONS] = ()) -> None:
        """Write a page to look inside: one file for a browser, which needs no network.

        beside  other functions that the page shows, too, such as the same at another level; of
                those that were profiled, the times of layers stand side by side

        It shows the times of the last profile, so call `profile` first.
        """
        functions = [self, *beside]
        write_text(path, to_html([function.describe() for function in functions]))

    # ------------------------------------------------------------ its caches

    @checked
    def save_cache(self, path: FilePath, type: str = "all") -> None:
        """Write what was measured and compiled for the function to a file, beside what it holds.

        type  "onednn" (or "mkldnn"), "cudnn", "jit" or "all"

        `comp_graph().load_cache` reads it.  Raises CacheError if the file cannot be written.
        """
        environment = self._compiled.environment()
        cache_file.save_entries(path, type, environment, self.cache_entries(), self.merged)

    # ------------------------------------------------------------ what other sizes use of it

    @property
    def arena(self) -> object:
        """Its memory for intermediate results."""
        return self._executor.arena

    @property
    def holds(self) -> Mapping[int, int]:
        """How many bytes it holds besides parameters, by the id of what holds them."""
        program = self._program
        kernels = sum(STEP_BYTES + step.kernel.prepared_bytes for step in program.steps)
        constants = {
            id(b.node.op.value): b.nbytes
            for b in program.buffers
            if b.node is not None and isinstance(b.node.op, Constant)
        }
        return {**constants, id(self): kernels, id(self.arena): program.arena_bytes}

    @property
    def tuning_seconds(self) -> float:
        """How long measuring algorithms took when it was compiled."""
        return self._compiled.choices.session.spent

    @property
    def knowledge(self) -> Told:
        """What is known of the algorithms that it chose among."""
        return self._compiled.choices.session.knowledge

    def cache_entries(self) -> list[Entry]:
        """Return all that was measured and compiled for the function, as caches keep it."""
        measured = self._compiled.choices.session.used.values()
        return [*measured, *self._backend.kernels(self._program)]

    def merged(self, old: Entry, new: Entry) -> Entry:
        """Return what caches keep of one of `cache_entries` and an old one with the same key."""
        return self._compiled.choices.session.merge(old, new)


Execute = Callable[[Sequence[Array], Done], list[Array]]  # as an Executor is called


Feed = int | Callable[[Function], Array]  # which argument, or what the function itself knows


def _feed(node: Node | None, inputs: Sequence[Node]) -> Feed:
    """Return where the value of an input comes from."""
    if node is SEED:
        return Function._own_seed
    if node is STEP:
        return lambda function: function._counter.calls.copy()
    return next(i for i, x in enumerate(inputs) if x is node)
