"""Functions that raise at the op that makes a NaN or an infinity: option `debug.check_finite`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from minigraph.compiler.pipeline import Compilation
from minigraph.debug.rounding import widened
from minigraph.devices.host import HostExecutor
from minigraph.errors import DeviceError, GraphError
from minigraph.graph import FLOATS, Array
from minigraph.platform.signals import signals_deferred
from minigraph.program import Buffer, Done, Memory, MemorySpace, Step, View
from minigraph.runtime.function import CallCounter, Execute, Function


class FiniteFunction(Function):
    """A function whose calls raise GraphError if an op makes a NaN or an infinity.

    An op makes a NaN if its result has NaN and its inputs have none.  It makes an infinity if its
    result has infinity and its inputs have neither infinity nor NaN.  So constant infinities, as in
    an attention mask, are no error.  A NaN of an input or a parameter may reach results, but no new
    value of a parameter.  A call that raises leaves the parameters unchanged.
    """

    _executor: HostExecutor

    def __init__(self, compilation: Compilation, counter: CallCounter | None = None) -> None:
        if not isinstance(compilation.executor, HostExecutor):
            raise DeviceError(
                'debug.check_finite reads memory of the host; compile for the device "cpu"'
            )
        super().__init__(compilation, counter)

    def _run(self, values: Sequence[Array], execute: Execute) -> list[Array]:
        before = self._state()
        source = self._nan_source(values)
        updated = {view.buffer: p.name for p, view in self._program.updates} if source else {}

        def look(step: Step, memory: Memory) -> Done:
            return _checker(step, memory, source, updated)

        def inspected(inputs: Sequence[Array], done: Done) -> list[Array]:
            return self._executor.profile(inputs, done, look)[0]

        try:
            return super()._run(values, inspected if execute is self._execute else execute)
        except GraphError:
            with signals_deferred():
                self._restore(before)
            raise

    def _nan_source(self, values: Sequence[Array]) -> str:
        """Describe an input, or else a parameter, that has NaN; "" if none has."""
        named = [(f"input {x.name}", x) for x in self._inputs]
        parameters = self._compilation.traced.graph.parameters
        named += [(f"parameter {p.name}", p) for p in parameters]
        arrays = [*values, *(p.numpy() for p in parameters)]
        for (name, node), array in zip(named, arrays, strict=True):
            count = int(np.isnan(widened(array)).sum()) if node.dtype in FLOATS else 0
            if count:
                return f"{name} holds NaN in {count} of {array.size} elements"
        return ""


def _checker(step: Step, memory: Memory, source: str, updated: Mapping[Buffer, str]) -> Done:
    """Copy the inputs that a step overwrites; return a function that checks its outputs.

    source   description of an input or parameter that has NaN; "" if none has
    updated  names of the parameters that buffers update after the call
    """
    outputs = [view.array(memory[view.buffer]) for view in step.outputs]

    def before(view: View) -> Array:
        array = view.array(memory[view.buffer])
        overwritten = any(np.may_share_memory(array, output) for output in outputs)
        return array.copy() if overwritten else array

    inputs = [before(view) for view in step.inputs]

    def check() -> None:
        nonfinite = _new_nonfinite(inputs, outputs)
        if nonfinite:
            pairs = zip(step.node.inputs, inputs, strict=True)
            ranges = ", ".join(f"{x.spec} {_range(value)}" for x, value in pairs)
            message = f"{step.node.op.name} made {nonfinite} of {ranges}"
            raise GraphError(f"{message} {step.node.source}")
        for view, output in zip(step.outputs, outputs, strict=True):
            node = view.buffer.node if view.buffer.space is MemorySpace.PARAMETER else None
            name = node.name if node is not None else updated.get(view.buffer)
            if source and name and output.dtype in FLOATS and np.isnan(widened(output)).any():
                raise GraphError(
                    f"{source}; the new value of parameter {name} would hold NaN from it, made "
                    f"{step.node.source}"
                )

    return check


def _new_nonfinite(inputs: Sequence[Array], outputs: Sequence[Array]) -> str:
    """Describe the NaN or infinities in outputs that no input explains; "" without any."""
    for name, is_new, explains in (
        ("NaN", np.isnan, np.isnan),
        ("infinity", np.isinf, lambda x: ~np.isfinite(x)),
    ):
        counts = [int(is_new(widened(y)).sum()) for y in outputs if y.dtype in FLOATS]
        if any(counts) and not any(explains(widened(x)).any() for x in inputs if x.dtype in FLOATS):
            size = sum(y.size for y in outputs if y.dtype in FLOATS)
            return f"{name} in {sum(counts)} of {size} elements"
    return ""


def _range(value: Array) -> str:
    wide = widened(value)
    if not wide.size:
        return "without elements"
    if wide.dtype == bool or not np.isfinite(wide).any():
        return "of bools" if wide.dtype == bool else "without finite numbers"
    finite = wide[np.isfinite(wide)]
    return f"from {finite.min():g} to {finite.max():g}"
