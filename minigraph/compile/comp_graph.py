"""`comp_graph`: where options are read, and expressions become a function."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from minigraph import options as settings
from minigraph.arguments import FilePath, checked
from minigraph.autotune.session import Told
from minigraph.cache import Entry
from minigraph.compile.arguments import (
    DEVICE,
    INPUTS,
    OPTIONS,
    OUTPUTS,
    UPDATES,
    as_they_are,
    check_descents,
    check_inputs,
    expression,
    flattened,
    frozen,
    new_value,
)
from minigraph.compile.context import open_choices, tuned_once
from minigraph.compile.missing_updates import warn_of_left_out
from minigraph.compile.pipeline import Programs
from minigraph.compile.task import CompileTask
from minigraph.debug.check_finite import FiniteFunction
from minigraph.debug.verify import VerifiedFunction
from minigraph.devices.factory import check_device, open_backend
from minigraph.graph import Graph, Node, Parameter, is_symbolic
from minigraph.inspect.description.describe import Past
from minigraph.ops.random import SEED, STEP, number_streams
from minigraph.passes.rewrite.loops import merge_loops, unroll_loops
from minigraph.program import NOTHING_AHEAD, Ahead, Backend
from minigraph.program.memory import foreseen
from minigraph.runtime import cache_file, fingerprint
from minigraph.runtime.agreement import agreed
from minigraph.runtime.any_size import AnySizeFunction, Shared
from minigraph.runtime.function import Compiled, Function, Lowered
from minigraph.runtime.stage import collector_paused, timed
from minigraph.runtime.watching import told
from minigraph.torch_hints import missing


class CompGraph:
    """A device with options, which turns expressions into functions."""

    @checked
    def __init__(
        self,
        device: Annotated[str, DEVICE] | None = None,
        options: Annotated[Mapping[str, Any], OPTIONS] | None = None,
    ) -> None:
        self.device = check_device(settings.default_device()) if device is None else device
        self._given: dict[str, Any] = {}
        self._loaded: dict[str, Entry] = {}
        for name, value in (options or {}).items():
            self.set_option(name, value)
        settings.resolve(self._given)  # a bad MINIGRAPH_OPTIONS is an error here, not later

    if not TYPE_CHECKING:  # else no wrong name of an attribute would be found

        def __getattr__(self, name: str) -> Any:
            raise missing("a comp_graph", name, "comp_graphs", self)

    def set_option(self, name: str, value: Any) -> Any:
        """Set an option for functions compiled from now on; return its old value."""
        option = settings.find(name)
        taken = option.check(value)
        old = self.get_option(name)
        self._given[name] = taken
        return old

    def get_option(self, name: str) -> Any:
        """Return the value of an option."""
        return self.options[settings.find(name).name]

    @property
    def options(self) -> dict[str, Any]:
        """All options with their values."""
        return settings.resolve(self._given)

    @checked
    def compile(
        self,
        inputs: Annotated[Sequence[Node], INPUTS] = (),
        outputs: Annotated[Node | Sequence[Node] | Mapping[Any, Node], OUTPUTS] = (),
        updates: Annotated[Mapping[Parameter, Any], UPDATES] | None = None,
        *,
        optimize: bool | None = None,
        cache_dir: FilePath | None = None,
        freeze: bool = False,
    ) -> Function | AnySizeFunction:
        """Return the function of `inputs` that computes `outputs` and then applies `updates`.

        inputs     made by `mg.input`; the function takes their values in this order or by name.
                   One of a shape such as (None, 784) makes a function of any size.
        outputs    expressions, or one expression, for which the function returns one array, or a
                   dict of them, for which it returns a dict of arrays
        updates    for parameters their new values: computed, as the outputs are, from the values
                   that all parameters had when the call began.  A step that trains a BatchNorm
                   layer without `net.updates()` gives a warning
        optimize   True: tune even where the option `autotune` is "off"; False: choose algorithms by
                   heuristics and touch no cache, that of generated kernels included
        freeze     True: parameters are constants, as they are now, so what depends on them alone is
                   done once: batch norms of inference are folded into the convolutions before them,
                   weights are brought into the layouts of their kernels.  Later changes of the
                   parameters do not reach the function
        cache_dir  a folder for the function's own cache file, <7 digits of its fingerprint>.cache,
                   which is read if it is there and written if it lacks something

        Raises GraphError for an input that is missing, named twice or no input, and for updates of
        a function that is frozen, ShapeError and DTypeError for a new value that does not fit its
        parameter, CacheError for an algorithm that was not measured where `autotune` is "frozen".
        """
        values = self.options
        if optimize is False:
            values["autotune"] = "off"
        elif optimize and values["autotune"] == "off":
            values["autotune"] = "tune"
        seconds: dict[str, float] = {}
        wanted, returned = flattened(outputs)
        results = list(map(expression, wanted))
        with timed(seconds, "build"):
            check_inputs(inputs)
            check_descents(updates or {})
            new = {p: new_value(p, value) for p, value in (updates or {}).items()}
            graph = Graph((*inputs, SEED, STEP), (*results, *new.values()))
            graph.check()
            warn_of_left_out(graph, new)
            graph = frozen(graph, new) if freeze else graph
            graph = merge_loops(number_streams(graph))
            world = agreed(self.device, graph, list(new), values)
        task = CompileTask(graph, list(inputs), len(results), returned, list(new), world)
        backend = open_backend(self.device, values, optimize is not False, world)
        folder = None if optimize is False else cache_dir
        loaded = dict(self._loaded)
        if not any(is_symbolic(x.shape) for x in inputs):
            return told(self._cached(task, backend, values, seconds, loaded, folder))

        def of_sizes(sizes: Mapping[str, int], shared: Shared) -> Function:
            took: dict[str, float] = {}
            with timed(took, "build"):
                concrete = task.with_sizes(sizes)
            return self._cached(concrete, backend, values, took, loaded, folder, shared)

        return told(AnySizeFunction(inputs, backend.array, values, of_sizes, world))

    def _cached(
        self,
        task: CompileTask,
        backend: Backend,
        values: Mapping[str, Any],
        seconds: dict[str, float],
        loaded: Mapping[str, Entry],
        folder: str | os.PathLike[str] | None,
        shared: Shared | None = None,
    ) -> Function:
        """Return the function for `task`, with its cache file in `folder` read and written."""
        if backend.unrolls:
            with timed(seconds, "build"):
                task = replace(task, graph=unroll_loops(task.graph))

        @functools.cache
        def environment() -> Mapping[str, str]:
            return fingerprint.environment(task.graph, self.device, values, backend.versions)

        given = (task, backend, values, environment, seconds)

        def make(known: Mapping[str, Entry]) -> Function:
            limit = values["graph_opt.memory_limit"] or math.inf
            there = shared and shared.arenas()
            nbytes = 0 if there else int(min(foreseen(task.graph), limit))
            with backend.ahead(nbytes) as ahead, collector_paused():
                build = functools.partial(self._function, *given, known, shared, ahead)
                return tuned_once(task.world, backend, values, build) if task.world else build()

        if folder is None:
            return make(loaded)
        path = cache_file.file_of(folder, environment()["fingerprint"])
        known = {**loaded, **cache_file.load_from_folder(path, environment(), backend).entries}
        function = make(known)
        entries = function.cache_entries()
        cache_file.save_to_folder(path, environment(), entries, function.merged)
        return function

    @checked
    def load_cache(self, path: FilePath, type: str = "all") -> cache_file.Loaded:
        """Use what `Function.save_cache` has written, in functions compiled from now on.

        type  "onednn" (or "mkldnn"), "cudnn", "jit" or "all"

        Entries that are damaged, or were made in another environment, are not used: the result says
        which, and why.  Raises CacheError if machine code is asked for and others may have written
        the file.
        """
        loaded = cache_file.load_entries(path, type, open_backend(self.device, self.options))
        self._loaded.update(loaded.entries)
        return loaded

    def _function(
        self,
        task: CompileTask,
        backend: Backend,
        values: Mapping[str, Any],
        environment: Callable[[], Mapping[str, str]],
        seconds: dict[str, float],
        loaded: Mapping[str, Entry],
        shared: Shared | None = None,
        ahead: Ahead = NOTHING_AHEAD,
        told: Told | None = None,
    ) -> Function:
        """Return the function for `task` with these options; `seconds` says what took how long.

        ahead  memory for an arena that is made ready meanwhile
        told   what another process has measured, where this one is not to measure
        """
        if values["debug.check_finite"]:
            values = settings.as_written(values)
        borrows = bool(shared and shared.borrows)
        choices = open_choices(backend, values, loaded, borrows, told, ahead.drop)
        programs = Programs(task, backend, values, choices)
        stages = programs.stages(seconds)
        ready = [stages]

        def lowered(took: dict[str, float]) -> Lowered:
            # Once an algorithm has failed, other layouts may be best.
            with collector_paused():
                return programs.lowered(ready.pop() if ready else programs.stages(took), took)

        compiled = Compiled(
            inputs=task.inputs,
            returned=task.returned,
            reads=task.graph.parameters,
            changes=task.updates,
            backend=backend,
            options=values,
            environment=environment,
            seconds=seconds,
            lowered=lowered,
            past=lambda: Past(task.graph, programs.stages({}), task.results, task.updates),
            choices=choices,
            world=task.world,
            counter=shared.counter if shared else None,
            arenas=shared.arenas if shared else tuple,
            ahead=ahead,
        )
        if values["debug.check_finite"]:
            return FiniteFunction(compiled)
        if values["graph_opt_level"] >= 0:
            return Function(compiled)
        plain = settings.as_written(values)
        listed = replace(task, returned=as_they_are)
        written = self._function(listed, backend, plain, environment, {}, {})
        named = [("", task.graph), *((record.name, graph) for graph, record in stages)]
        if values["amp"] != "off":  # the first pass, which rounds more than the others
            named = [("", named[1][1]), *named[2:]]
        return VerifiedFunction(compiled, written=written, stages=named, updates=task.updates)


def comp_graph(device: str | None = None, options: Mapping[str, Any] | None = None) -> CompGraph:
    """Return a graph compiler for a device.

    device   "cpu", "cuda" or "cuda:1", or "reference" (every op in NumPy); default
             `MINIGRAPH_DEVICE`, else "cpu"
    options  names and values, as `set_option` takes them

    >>> cg = comp_graph(options={"graph_opt_level": 3})
    >>> cg.set_option("graph_opt_level", 2)
    3
    """
    return CompGraph(device, options)
