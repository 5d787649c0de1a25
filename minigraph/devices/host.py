"""Programs in the memory of the host: the arena, parameters and results are NumPy arrays."""

from __future__ import annotations

import functools
import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from minigraph.devices.pages import HostMemory
from minigraph.errors import DeviceError
from minigraph.graph import Array, Constant, Graph, Parameter, Spec, aligned_empty
from minigraph.program import (
    Backend,
    Buffer,
    Done,
    Executor,
    Look,
    Memory,
    MemorySpace,
    Program,
    ReservedMemory,
    Step,
    Timing,
    View,
    look_away,
    nothing,
)
from minigraph.program.memory import LARGEST, demand

BYTE = np.dtype(np.uint8)


class Invocation(NamedTuple):
    """What differs between the calls of a program.

    inputs   the arrays given for its `inputs`
    outputs  memory for its `returned` buffers
    commit   what ends the call, `together` with the steps that change parameters
    """

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    commit: Sequence[Done] = ()

    def memory(self, program: Program) -> Memory:
        """Return the memory of the buffers that differ between calls."""
        buffers = (*program.inputs, *program.returned)
        return dict(zip(buffers, (*self.inputs, *self.outputs), strict=True))


class StepRunner(Protocol):
    """What runs the steps of a program whose memory is there, as an `Executor` does."""

    failures: dict[Step, str]

    @property
    def launches(self) -> int: ...

    def __call__(self, call: Invocation) -> None: ...

    def profile(self, call: Invocation, look: Look = look_away) -> list[Timing]: ...


def together(calls: Sequence[Done]) -> bool:
    """Make calls until one returns something true, and return whether one did.

    Python runs the handlers of signals between instructions of its own.  So if all these are calls
    of built-in functions, none is interrupted and nothing comes between them.
    """
    return any(map(operator.call, calls))


class HostBackend(Backend):
    """What devices have in common whose memory is the host's."""

    unrolls = False
    host_memory = True
    ignored_options: Mapping[str, str] = {"precision": "only CUDA devices compute in tf32"}

    @abstractmethod
    def runner(self, program: Program, memory: Memory) -> StepRunner:
        """Return what runs the steps of a program.

        memory  of the buffers that stay where they are between calls
        """

    def reserve_memory(self, nbytes: int) -> ReservedMemory:
        return HostMemory(nbytes)

    def bind(self, program: Program, arenas: Sequence[Array] = ()) -> Executor:
        return HostExecutor(program, self.runner, arenas)

    def run_alone(self, step: Step, memory: Memory) -> None:
        used = {view.buffer: None for view in (*step.inputs, *step.outputs)} | {step.scratch: None}
        alone = Program(Graph((), ()), [step], buffers=[*used])
        static = {
            b: memory[b] for b in used if b.space not in (MemorySpace.INPUT, MemorySpace.OUTPUT)
        }
        run = self.runner(alone, static)
        run(Invocation(*([memory[b] for b in each] for each in (alone.inputs, alone.returned))))


class HostExecutor(Executor):
    """A program with its memory on the host.

    bind  returns what runs the steps, given the memory of the buffers that stay where they are
    """

    def __init__(
        self,
        program: Program,
        bind: Callable[[Program, Memory], StepRunner],
        arenas: Sequence[Array] = (),
    ) -> None:
        self.program = program
        large = [arena for arena in arenas if arena.nbytes >= program.arena_bytes]
        self.arena: Array = large[0] if large else _new_arena(program)
        self._memory = _memory(program, self.arena)
        # What the last calls returned, for each buffer of an output.
        self._returned: list[list[Array]] = [[] for _ in program.returned]
        self._results = [*zip(program.outputs, _owners(program), strict=True)]
        changed = program.changed
        self._changed = [p.state for p in changed]
        self._read = [p.state for p in program.parameters if p not in changed]
        self._runner = bind(program, self._memory)
        self.failures = self._runner.failures

    @property
    def launches(self) -> int:
        return self._runner.launches

    def __call__(self, inputs: Sequence[Array], done: Done = nothing) -> list[Array]:
        results, call = self._begin(inputs, done)
        self._runner(call)
        return results

    def profile(
        self, inputs: Sequence[Array], done: Done = nothing
    ) -> tuple[list[Array], list[Timing]]:
        results, call = self._begin(inputs, done)
        return results, self._runner.profile(call)

    def inspect(self, inputs: Sequence[Array], done: Done, look: Look) -> list[Array]:
        results, call = self._begin(inputs, done)
        self._runner.profile(call, look)
        return results

    def _begin(self, inputs: Sequence[Array], done: Done) -> tuple[list[Array], Invocation]:
        """Bring parameters that a device has changed; return what the caller gets, and the call.

        What ends the call are copies for the caller, who gets parameters as they were; then the
        updates that are not made in place; then `done`.
        """
        for state in self._read:
            state.read()
        for state in self._changed:
            state.write()
        results: list[Array] = []
        copies: list[tuple[Array, View]] = []
        try:
            outputs = [
                _free_memory(returned, buffer.nbytes)
                for returned, buffer in zip(self._returned, self.program.returned, strict=True)
            ]
            for view, owner in self._results:
                if owner is None:
                    results.append(np.empty(view.spec.shape, view.spec.dtype))
                    copies.append((results[-1], view))
                else:
                    results.append(view.array(outputs[owner]))
        except MemoryError:
            specs = sorted((view.spec for view, _ in self._results), key=lambda x: -x.nbytes)
            largest = ", ".join(f"{x} ({x.nbytes >> 20} MiB)" for x in specs[:LARGEST])
            text = f"the memory does not suffice for the outputs: {largest}"
            raise DeviceError(text) from None
        copies += [(parameter.state.write(), view) for parameter, view in self.program.updates]
        changing = Invocation(inputs, outputs).memory(self.program) if copies else {}
        commit: list[Done] = []
        for to, view in copies:
            memory = changing if view.buffer in changing else self._memory
            array = view.array(memory[view.buffer])
            commit.append(functools.partial(operator.setitem, to, ..., array))
        return results, Invocation(inputs, outputs, [*commit, done])


def _new_arena(program: Program) -> Array:
    """Return memory; DeviceError, which says what it would have been for, if there is none."""
    try:
        return aligned_empty(Spec((program.arena_bytes,), BYTE))
    except MemoryError as error:
        raise DeviceError(f"the memory does not suffice ({error}); {demand(program)}") from None


def _memory(program: Program, arena: Array) -> dict[Buffer, Array]:
    memory: dict[Buffer, Array] = {}
    for buffer in program.buffers:
        if buffer.space is MemorySpace.ARENA:
            memory[buffer] = arena[buffer.offset : buffer.offset + buffer.nbytes]
        elif buffer.space is MemorySpace.PARAMETER:
            assert isinstance(buffer.node, Parameter)
            memory[buffer] = buffer.node.state.on_host()
        elif buffer.space is MemorySpace.CONSTANT:
            assert buffer.node is not None and isinstance(buffer.node.op, Constant)
            memory[buffer] = np.ascontiguousarray(buffer.node.op.value)
    return memory


def _owners(program: Program) -> list[int | None]:
    """Return for each output the returned buffer that is its own, None if it has to be copied."""
    owners: list[int | None] = []
    for view in program.outputs:
        whole = view.contiguous and view.spec.nbytes == view.buffer.nbytes
        mine = program.returned.index(view.buffer) if view.buffer in program.returned else None
        owners.append(mine if whole and mine not in owners else None)
    return owners


def _free_memory(returned: list[Array], nbytes: int) -> Array:
    """Return memory for an output that no array of the caller shows.

    `returned` holds what the last two calls gave out: with `y = f(x)` in a loop the caller lets go
    of one while it gets the other.  Memory fresh from the system costs more than most kernels do.
    """
    for i in range(len(returned)):
        if _references(returned, i) == ALONE:
            return returned[i]
    returned.append(aligned_empty(Spec((nbytes,), BYTE)))
    del returned[:-2]
    return returned[-1]


def _references(arrays: list[Array], index: int) -> int:
    """Return how many references there are to the owner of an array's memory."""
    return sys.getrefcount(arrays[index].base)


ALONE = _references([aligned_empty(Spec((1,), BYTE))], 0)
