"""What chooses kernels for one compile, and which kernels it may generate."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from minigraph import options as settings
from minigraph.autotune.session import Near, Session
from minigraph.cache import Entry, Measurements
from minigraph.devices.factory import policy_of
from minigraph.errors import warn_once
from minigraph.program import Backend
from minigraph.program.choices import Choices


def open_choices(
    backend: Backend,
    values: Mapping[str, Any],
    loaded: Mapping[str, Entry],
    near: Near | None = None,
) -> Choices:
    """Return what chooses kernels for one compile, which may know entries of loaded files."""
    folder = settings.cache_folder()
    store = measurements(folder) if folder and values["autotune"] != "off" else None
    environment = backend.environment(backend.tuning)
    policy, budget = policy_of(values), values["autotune.budget"]
    session = Session(values["autotune"], policy, budget, environment, store, loaded, near)
    return Choices(backend, session)


measurements = functools.cache(Measurements)  # one for each folder


def jit_level(values: Mapping[str, Any], backend: Backend) -> int:
    """Return what `graph_opt.jit` stands for here: 0, with one warning, where nothing compiles."""
    jit = values["graph_opt.jit"]
    if jit == "auto":
        jit = 2 if abs(values["graph_opt_level"]) == 3 else 0
    if jit and backend.why_no_jit:
        warn_once(f"no kernels are fused: {backend.why_no_jit}")
        return 0
    return int(jit)
