"""Programs in the memory of the host: the arena, parameters and results are NumPy arrays."""

from __future__ import annotations

import functools
import mmap
import operator
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import numpy as np

from minigraph.errors import DeviceError
from minigraph.graph import Array, Constant, Parameter, Spec, aligned_empty
from minigraph.program import (
    Backend,
    Buffer,
    Done,
    Executor,
    Memory,
    MemorySpace,
    Program,
    ReservedMemory,
    Step,
    Timing,
    View,
    nothing,
)
from minigraph.program.memory import MAX_NAMED_RESULTS, demand

BYTE = np.dtype(np.uint8)
# The memory is this many times as large as predicted; pages that no thread touches cost nothing.
MAX_SIZE_FACTOR = 4
TOUCHED_PART = 16 << 20  # bytes that are touched before the thread checks whether to stop
# Called with a step and its memory before the step runs; returns a function to call after it.
Observer = Callable[[Step, Memory], Done]


def no_observer(step: Step, memory: Memory) -> Done:
    return nothing


class StepRunner(Protocol):
    """A runner of a program's steps on allocated memory.

    A call gets the arrays of the program's `external` buffers, and the `commit` calls that end the
    call.  No signal handler runs between these and the steps that change parameters.
    """

    failures: dict[Step, str]

    @property
    def launches(self) -> int: ...

    def __call__(self, arrays: Sequence[Array], commit: Sequence[Done] = ()) -> None: ...

    def profile(
        self, arrays: Sequence[Array], commit: Sequence[Done], observer: Observer = no_observer
    ) -> list[Timing]: ...


def call_in_order(calls: Sequence[Done]) -> bool:
    """Make calls until one returns a true value, and return whether one did.

    Python runs signal handlers between bytecode instructions.  So no handler runs between the calls
    if all are of built-in functions.
    """
    return any(map(operator.call, calls))


class HostBackend(Backend):
    """The base of devices whose memory is the host's."""

    unrolls = False
    ignored_options: Mapping[str, str] = {"precision": "only CUDA devices compute in tf32"}

    @abstractmethod
    def runner(self, program: Program, memory: Memory) -> StepRunner:
        """Return the runner of a program's steps.

        memory  memory of the buffers with the same address in all calls
        """

    def reserve_memory(self, nbytes: int) -> ReservedMemory:
        return HostMemory(nbytes)

    def bind(self, program: Program, arenas: Sequence[Array] = ()) -> Executor:
        return HostExecutor(program, self.runner, arenas)


class HostExecutor(Executor):
    """A program with its memory on the host.

    bind  returns the runner of the steps, given the memory of the buffers with fixed addresses
    """

    def __init__(
        self,
        program: Program,
        bind: Callable[[Program, Memory], StepRunner],
        arenas: Sequence[Array] = (),
    ) -> None:
        self.program = program
        large = [arena for arena in arenas if arena.nbytes >= program.arena_bytes]
        spec = Spec((program.arena_bytes,), BYTE)
        try:
            self.arena: Array = large[0] if large else aligned_empty(spec)
        except MemoryError as error:
            raise DeviceError(f"the memory does not suffice ({error}); {demand(program)}") from None
        self._memory = _memory(program, self.arena)
        self._returned = [*map(ReturnedMemory, program.returned)]
        self._results = [*zip(program.outputs, _returned_buffers(program), strict=True)]
        for view, owner in self._results:
            if owner is not None:
                self._returned[owner].spec = view.spec
        # Updates that steps do not make in place are copied at the end of each call.
        updates = [(p.state.on_host(), view) for p, view in program.updates]
        self._updates = [
            _copy(to, v, self._memory) for to, v in updates if v.buffer in self._memory
        ]
        self._external_updates = [(to, v) for to, v in updates if v.buffer not in self._memory]
        changed = program.changed
        self._changed = [p.state for p in changed]
        self._unchanged = [p.state for p in program.parameters if p not in changed]
        self._runner = bind(program, self._memory)
        self._run = self._runner.__call__  # Python calls a method faster than an object
        self.failures = self._runner.failures

    @property
    def launches(self) -> int:
        return self._runner.launches

    def __call__(self, inputs: Sequence[Array], done: Done = nothing) -> list[Array]:
        results, arrays, commit = self._begin(inputs, done)
        self._run(arrays, commit)
        return results

    def profile(
        self, inputs: Sequence[Array], done: Done = nothing, observer: Observer = no_observer
    ) -> tuple[list[Array], list[Timing]]:
        """Run all steps one by one, and call `observer` at each.

        If `observer` raises an error, parameters may have changed.
        """
        results, arrays, commit = self._begin(inputs, done)
        return results, self._runner.profile(arrays, commit, observer)

    def _begin(
        self, inputs: Sequence[Array], done: Done
    ) -> tuple[list[Array], list[Array], list[Done]]:
        """Fetch parameters that another device changed; return results, arrays and commit calls.

        The results are the caller's, arrays and commit calls the arguments of the `StepRunner`.
        The commit calls first copy outputs for the caller, which show parameters before the
        updates; then they make the updates that are not in place, and call `done`.
        """
        for state in self._unchanged:
            state.read()
        for state in self._changed:
            state.write()
        results: list[Array] = []
        outputs: list[Array] = []
        copies: list[tuple[Array, View]] = []
        try:
            for memory in self._returned:  # a comprehension would be a function in Python 3.11
                outputs.append(memory.free())
            for view, owner in self._results:
                if owner is None:
                    results.append(np.empty(view.spec.shape, view.spec.dtype))
                    copies.append((results[-1], view))
                else:
                    results.append(outputs[owner][...])
        except MemoryError:
            specs = sorted((view.spec for view, _ in self._results), key=lambda x: -x.nbytes)
            largest = ", ".join(f"{x} ({x.nbytes >> 20} MiB)" for x in specs[:MAX_NAMED_RESULTS])
            text = f"the memory does not suffice for the outputs: {largest}"
            raise DeviceError(text) from None
        copies += self._external_updates
        arrays, commit = [*inputs, *outputs], [*self._updates, done]
        if copies:
            external = external_memory(self.program, arrays)
            commit[:0] = [
                _copy(to, view, external if view.buffer in external else self._memory)
                for to, view in copies
            ]
        return results, arrays, commit


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


def _returned_buffers(program: Program) -> list[int | None]:
    """Return the returned buffer that each output owns; None for an output that is copied."""
    owners: list[int | None] = []
    for view in program.outputs:
        is_whole = view.contiguous and view.spec.nbytes == view.buffer.nbytes
        index = program.returned.index(view.buffer) if view.buffer in program.returned else None
        owners.append(index if is_whole and index not in owners else None)
    return owners


def _copy(to: Array, view: View, memory: Memory) -> Done:
    """Return a call of a built-in function that copies a view."""
    return functools.partial(operator.setitem, to, ..., view.array(memory[view.buffer]))


class ReturnedMemory:
    """Memory for a returned buffer, reused from one of the last two calls if the caller freed it.

    With `y = f(x)` in a loop, the caller frees one array after it gets the other.  New memory from
    the system costs more time than most kernels.

    spec  of the returned array if it is the whole buffer, else of bytes
    """

    def __init__(self, buffer: Buffer) -> None:
        self.spec = Spec((buffer.nbytes,), BYTE)
        self._arrays: list[Array] = []

    def free(self) -> Array:
        """Return an array of the spec whose memory the caller does not use."""
        for array in self._arrays:
            if _references(array) == UNSHARED_REFERENCES:
                return array
        self._arrays.append(aligned_empty(self.spec))
        del self._arrays[:-2]
        return self._arrays[-1]


def external_memory(program: Program, arrays: Sequence[Array]) -> Memory:
    """Return the memory of the buffers that differ between calls."""
    return dict(zip(program.external, arrays, strict=True))


def _references(array: Array) -> int:
    """Return the number of references to the owner of an array's memory."""
    return sys.getrefcount(array.base)


UNSHARED_REFERENCES = _references(aligned_empty(Spec((1,), BYTE)))


class HostMemory(ReservedMemory):
    """Host memory for an arena of a predicted size; it is dropped if it is too small.

    The system allocates a page at the first write to it, which may take a second per GB on a
    virtual machine.  So a thread writes to the predicted bytes in the background, and to the rest
    once the size of the arena is known.  Populating the memory by the system instead would block
    other mappings, such as those of loading a library.
    """

    def __init__(self, nbytes: int) -> None:
        self.arrays: list[Array] = []
        self._touched = 0  # bytes from the beginning that are touched, or will be soon
        self._thread = ThreadPoolExecutor(1, "minigraph touches")
        with suppress(MemoryError):
            self.arrays.append(aligned_empty(Spec((MAX_SIZE_FACTOR * nbytes,), BYTE)))
            self._touch(nbytes)

    def arenas(self, nbytes: int) -> list[Array]:
        self.arrays = [array for array in self.arrays if array.nbytes >= nbytes]
        self._touch(nbytes)
        return [array[:nbytes] for array in self.arrays]

    def close(self) -> None:
        self.arrays.clear()
        self._thread.shutdown(cancel_futures=True)

    def _touch(self, nbytes: int) -> None:
        """Touch `nbytes` in the background, rounded down to whole parts."""
        for array in self.arrays:
            while self._touched + TOUCHED_PART <= nbytes:
                part = slice(self._touched, self._touched + TOUCHED_PART, mmap.PAGESIZE)
                self._touched += TOUCHED_PART
                with suppress(RuntimeError):  # the system starts no more threads
                    self._thread.submit(array[part].fill, 0)
