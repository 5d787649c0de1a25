"""What chooses kernels for one compile, and which kernels it may generate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from minigraph import options as settings
from minigraph.autotune.session import Session, Told
from minigraph.cache import Entry, Measurements
from minigraph.devices.factory import policy_of
from minigraph.distributed import World
from minigraph.errors import warn_once
from minigraph.program import Backend
from minigraph.program.choices import Choices

COMPILING = 120.0  # seconds for which processes wait at most while one compiles


def open_choices(
    backend: Backend,
    values: Mapping[str, Any],
    loaded: Mapping[str, Entry],
    borrows: bool = False,
    told: Told | None = None,
    measures: Callable[[], None] = lambda: None,
) -> Choices:
    """Return what chooses kernels for one compile, which may know entries of loaded files.

    borrows  whether nothing is measured of which other sizes were
    told     what another process has measured, where that is to be all that is known
    measures is called before anything is measured
    """
    folder = settings.cache_folder()
    store = measurements(folder) if folder and values["autotune"] != "off" else None
    environment = backend.environment(backend.tuning)
    policy, budget = policy_of(values), values["autotune.budget"]
    known = (store, loaded, borrows, told)
    session = Session(values["autotune"], policy, budget, environment, *known, measures=measures)
    return Choices(backend, session)


class Tuned(Protocol):
    """A function that knows what was measured for it."""

    @property
    def knowledge(self) -> Told: ...


T = TypeVar("T", bound=Tuned)


def tuned_once(
    world: World, backend: Backend, values: Mapping[str, Any], build: Callable[..., T]
) -> T:
    """Return a function for which the first process on each kind of machine has measured.

    build  returns the function; `told` is what was measured for it
    """
    timeout = values["distributed.timeout"]
    # Whoever measures may first wait as long for others on its machine, and then compiles kernels.
    longest = timeout + 2 * values["autotune.budget"] + COMPILING
    threads = settings.num_threads(values["num_threads"])
    kind = (dict(backend.environment(backend.tuning)), threads)
    first = world.gather(kind, timeout).index(kind)
    if first != world.rank:
        return build(told=world.gather(None, longest)[first])
    function = build()
    world.gather(function.knowledge, longest)
    return function


measurements = functools.cache(Measurements)  # one for each folder


def jit_level(values: Mapping[str, Any], backend: Backend) -> int:
    """Return what `graph_opt.jit` stands for here: 0, with one warning, where nothing compiles."""
    jit = values["graph_opt.jit"]
    if jit == "auto":
        jit = 2 if abs(values["graph_opt_level"]) == 3 else 0
    if jit and backend.why_no_jit:
        warn_once(f"no kernels are fused: {backend.why_no_jit}", cause=backend.why_no_jit)
        return 0
    return int(jit)
