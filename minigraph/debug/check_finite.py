"""Functions that stop where a NaN or an infinity begins, as `debug.check_finite` asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minigraph.compile.pipeline import Compilation
from minigraph.debug.rounding import widened
from minigraph.errors import DeviceError, GraphError
from minigraph.graph import FLOATS, Array, Node
from minigraph.platform.signals import held
from minigraph.program import Buffer, Done, Memory, MemorySpace, Step, View
from minigraph.runtime.calls import CallCounter
from minigraph.runtime.function import Execute, Function


class FiniteFunction(Function):
    """A function whose calls raise GraphError where an op makes a NaN or an infinity.

    An op makes a NaN if none of its inputs holds one, and an infinity if none of its inputs holds
    one or a NaN.  So what a program writes down itself, such as the infinities of an attention
    mask, may pass.  A NaN of an input or a parameter may reach results, but no new value of a
    parameter.  A call that raises leaves the parameters unchanged.
    """

    def __init__(self, compilation: Compilation, counter: CallCounter | None = None) -> None:
        if not compilation.context.backend.host_memory:
            raise DeviceError(
                'debug.check_finite looks at memory of the host; compile for the device "cpu"'
            )
        super().__init__(compilation, counter)

    def _run(self, values: list[Array], execute: Execute) -> list[Array]:
        before = self._state()
        odd = self._given_odd(values)
        changed = {view.buffer: p.name for p, view in self._program.updates} if odd else {}

        def look(step: Step, memory: Memory) -> Done:
            return _look(step, memory, odd, changed)

        def inspected(inputs: Sequence[Array], done: Done) -> list[Array]:
            return self._executor.inspect(inputs, done, look)

        try:
            return super()._run(values, inspected if execute is self._executor else execute)
        except GraphError:
            with held():
                self._restore(before)
            raise

    def _given_odd(self, values: Sequence[Array]) -> str:
        """Return which input, or else which parameter, holds NaN; "" if none does."""
        named = [(f"input {x.name}", x) for x in self._inputs]
        parameters = self._compilation.traced.graph.parameters
        named += [(f"parameter {p.name}", p) for p in parameters]
        arrays = [*values, *(p.numpy() for p in parameters)]
        for (name, node), array in zip(named, arrays, strict=True):
            count = int(np.isnan(widened(array)).sum()) if node.dtype in FLOATS else 0
            if count:
                return f"{name} holds NaN in {count} of {array.size} elements"
        return ""


def _look(step: Step, memory: Memory, given: str, changed: Mapping[Buffer, str]) -> Done:
    """Keep what a step will read; return what raises GraphError if it made odd numbers of it.

    given    where NaN comes from, if it is given
    changed  the parameters that get what is in a buffer after the call
    """
    outputs = [view.array(memory[view.buffer]) for view in step.outputs]

    def kept(view: View) -> Array:
        found = view.array(memory[view.buffer])
        lost = any(np.may_share_memory(found, output) for output in outputs)
        return found.copy() if lost else found

    inputs = [kept(view) for view in step.inputs]

    def looked() -> None:
        odd = _made(inputs, outputs)
        if odd:
            raise GraphError(_text(step.node, odd, inputs))
        for view, output in zip(step.outputs, outputs, strict=True):
            held_by = view.buffer.node if view.buffer.space is MemorySpace.PARAMETER else None
            name = held_by.name if held_by is not None else changed.get(view.buffer)
            if given and name and output.dtype in FLOATS and np.isnan(widened(output)).any():
                raise GraphError(
                    f"{given}; the new value of parameter {name} would hold NaN from it, made "
                    f"{step.node.source}"
                )

    return looked


def _made(inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
    """Return "NaN" or "infinity" if outputs hold one and inputs none, behind how many there are."""
    for what, odd, excused in (("NaN", np.isnan, np.isnan), ("infinity", np.isinf, _not_finite)):
        counts = [int(odd(widened(y)).sum()) for y in outputs if y.dtype in FLOATS]
        if any(counts) and not any(excused(widened(x)).any() for x in inputs if x.dtype in FLOATS):
            size = sum(y.size for y in outputs if y.dtype in FLOATS)
            return f"{what} in {sum(counts)} of {size} elements"
    return ""


def _not_finite(x: Array) -> Array:
    return ~np.isfinite(x)


def _text(node: Node, odd: str, inputs: Sequence[Array]) -> str:
    ranges = ", ".join(
        f"{x.spec} {_range(value)}" for x, value in zip(node.inputs, inputs, strict=True)
    )
    return f"{node.op.name} made {odd} of {ranges} {node.source}"


def _range(value: Array) -> str:
    wide = widened(value)
    if not wide.size:
        return "without elements"
    if wide.dtype == bool or not np.isfinite(wide).any():
        return "of bools" if wide.dtype == bool else "without finite numbers"
    finite = wide[np.isfinite(wide)]
    return f"from {finite.min():g} to {finite.max():g}"
