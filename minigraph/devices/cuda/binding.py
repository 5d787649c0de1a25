"""The addresses of a program's operands, and the calls that enqueue its steps there.

A CUDA graph needs fixed addresses, so inputs are copied to them and outputs from them.  For a
function of a few launches on large arrays those copies take longer than a graph saves.  It is
*direct*: its inputs and outputs move, that is, they are the arrays of each call.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from minigraph.devices.cuda.calls import Call, Places, calls_of, launches_of
from minigraph.devices.cuda.driver import Driver
from minigraph.program import Buffer, Program, Step

# Bytes that a large GPU copies in a second: its memory moves some 4 TB/s, and a byte that is copied
# is read and written.
COPYING = 2e12
# Seconds by which a kernel that is launched from Python comes later than one of a graph: about what
# the launch takes.
LAUNCHING = 3e-6
# Calls that are cached, by their addresses.  The pool gives a loop the same addresses each time,
# and the calls of a step take some 15 us to make.
RECENT = 8


def moving(program: Program) -> list[Buffer]:
    """Return the inputs and outputs that move; none if copying them costs less than launching.

    A buffer that is returned once is returned whole; more than one array is copied from it.
    """
    shown = Counter(view.buffer for view in program.outputs)
    outputs = [buffer for buffer in program.returned if shown[buffer] == 1]
    found = [*program.inputs, *outputs]
    copying = sum(buffer.nbytes for buffer in found) / COPYING
    launching = sum(launches_of(step.kernel) or 0 for step in program.steps) * LAUNCHING
    return found if copying > launching else []


class BoundCalls(NamedTuple):
    """The addresses of a program's buffers, and the calls of its steps there.

    calls  None for a step that NumPy runs
    """

    places: Places
    calls: Mapping[Step, list[Call] | None]


def bind(
    program: Program,
    fixed: Places,
    moving: Sequence[Buffer],
    flags: Mapping[Step, int],
    functions: Mapping[str, int],
    driver: Driver,
) -> Callable[[tuple[int, ...]], BoundCalls]:
    """Return what binds a program to the addresses of its moving buffers.

    fixed  the addresses of the other buffers
    flags  of the steps that set one, their addresses
    """

    def calls(steps: Sequence[Step], places: Places) -> dict[Step, list[Call] | None]:
        return {s: calls_of(s, places, flags.get(s, 0), functions, driver) for s in steps}

    moves = {*moving}
    fixed_steps: list[Step] = []
    moving_steps: list[Step] = []
    for step in program.steps:
        touches = any(view.buffer in moves for view in (*step.inputs, *step.outputs))
        (moving_steps if touches else fixed_steps).append(step)
    fixed_calls = calls(fixed_steps, fixed)

    @functools.lru_cache(RECENT)
    def at(addresses: tuple[int, ...]) -> BoundCalls:
        places = {**fixed, **dict(zip(moving, addresses, strict=True))}
        return BoundCalls(places, {**fixed_calls, **calls(moving_steps, places)})

    return at
