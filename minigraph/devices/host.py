"""Programs in the memory of the host: the arena, parameters and results are NumPy arrays."""

from __future__ import annotations

import functools
import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from minigraph.devices import pages
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
from minigraph.program.memory import demand, outputs_in_words

BYTE = np.dtype(np.uint8)


class StepRunner(Protocol):
    """What runs the steps of a program whose memory is there.

    `inputs` and `outputs` are what differs between calls: the arrays given for the program's
    `inputs`, and memory for its `returned` buffers.  `commit` ends a call, `together` with the
    steps that change parameters.  The rest is as in `Executor`.
    """

    failures: dict[Step, str]

    @property
    def launches(self) -> int: ...

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], commit: Sequence[Done]
    ) -> None: ...

    def profile(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        commit: Sequence[Done],
        look: Look = look_away,
    ) -> list[Timing]: ...


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

    def reserve_memory(self, nbytes: int) -> AbstractContextManager[ReservedMemory]:
        return pages.reserve_memory(nbytes)

    def bind(self, program: Program, arenas: Sequence[Array] = ()) -> Executor:
        return HostExecutor(program, self.runner, arenas)

    def run_alone(self, step: Step, memory: Memory) -> None:
        used = {view.buffer: None for view in (*step.inputs, *step.outputs)} | {step.scratch: None}
        alone = Program(Graph((), ()), [step], buffers=[*used])
        static = {
            b: memory[b] for b in used if b.space not in (MemorySpace.INPUT, MemorySpace.OUTPUT)
        }
        run = self.runner(alone, static)
        run([memory[b] for b in alone.inputs], [memory[b] for b in alone.returned], [])


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
        outputs = self._prepare()
        results, commit = self._ending(inputs, outputs, done)
        self._runner(inputs, outputs, commit)
        return results

    def profile(
        self, inputs: Sequence[Array], done: Done = nothing
    ) -> tuple[list[Array], list[Timing]]:
        outputs = self._prepare()
        results, commit = self._ending(inputs, outputs, done)
        return results, self._runner.profile(inputs, outputs, commit)

    def inspect(self, inputs: Sequence[Array], done: Done, look: Look) -> list[Array]:
        outputs = self._prepare()
        results, commit = self._ending(inputs, outputs, done)
        self._runner.profile(inputs, outputs, commit, look)
        return results

    def _prepare(self) -> list[Array]:
        """Bring parameters that a device has changed, and return memory for the outputs."""
        for state in self._read:
            state.read()
        for state in self._changed:
            state.write()
        try:
            return [
                _free_memory(returned, buffer.nbytes)
                for returned, buffer in zip(self._returned, self.program.returned, strict=True)
            ]
        except MemoryError:
            raise _too_large(self.program) from None

    def _ending(
        self, inputs: Sequence[Array], outputs: Sequence[Array], done: Done
    ) -> tuple[list[Array], list[Done]]:
        """Return what the caller gets, and what ends a call.

        That is: copies for the caller, who gets parameters as they were; then the updates that are
        not made in place; then `done`.
        """
        results: list[Array] = []
        copies: list[tuple[Array, View]] = []
        for view, owner in self._results:
            if owner is None:
                try:
                    results.append(np.empty(view.spec.shape, view.spec.dtype))
                except MemoryError:
                    raise _too_large(self.program) from None
                copies.append((results[-1], view))
            else:
                results.append(view.array(outputs[owner]))
        copies += [(parameter.state.write(), view) for parameter, view in self.program.updates]
        ending: list[Done] = [
            functools.partial(operator.setitem, to, ..., self._array(view, inputs, outputs))
            for to, view in copies
        ]
        return results, [*ending, done]

    def _array(self, view: View, inputs: Sequence[Array], outputs: Sequence[Array]) -> Array:
        """Return the array that `view` shows."""
        if view.buffer.space is MemorySpace.INPUT:
            return view.array(inputs[self.program.inputs.index(view.buffer)])
        if view.buffer.space is MemorySpace.OUTPUT:
            return view.array(outputs[self.program.returned.index(view.buffer)])
        return view.array(self._memory[view.buffer])


def _new_arena(program: Program) -> Array:
    """Return memory; DeviceError, which says what it would have been for, if there is none."""
    try:
        return aligned_empty(Spec((program.arena_bytes,), BYTE))
    except MemoryError as error:
        raise DeviceError(f"the memory does not suffice ({error}); {demand(program)}") from None


def _too_large(program: Program) -> DeviceError:
    """Return the error of a call whose results do not fit into the memory."""
    return DeviceError(f"the memory does not suffice for the outputs: {outputs_in_words(program)}")


def _memory(program: Program, arena: Array) -> dict[Buffer, Array]:
    """Return the memory of the buffers that stay where they are between calls."""
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
