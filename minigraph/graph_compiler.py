"""`comp_graph`: compiling expressions to functions, with options, for a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from minigraph import options as settings
from minigraph.arguments import FilePath, checked
from minigraph.cache import Entry
from minigraph.compiler.agreement import agree_on_graph
from minigraph.compiler.pipeline import Compilation, CompileContext, collector_paused, timed
from minigraph.compiler.trace import DEVICE, INPUTS, OPTIONS, OUTPUTS, UPDATES, trace
from minigraph.debug.check_finite import FiniteFunction
from minigraph.debug.verify import VerifiedFunction
from minigraph.devices.factory import open_backend
from minigraph.errors import attribute_error
from minigraph.graph import Node, Parameter
from minigraph.runtime import cache_file
from minigraph.runtime.any_size import AnySizeFunction
from minigraph.runtime.function import CallCounter, Function, collect


class CompGraph:
    """A compiler of expressions to functions, with options, for a device."""

    def __init__(self, device: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        if device is None:
            device = DEVICE.check("MINIGRAPH_DEVICE", settings.default_device())
        self.device = device
        self._set_options: dict[str, Any] = {}
        self._loaded: dict[str, Entry] = {}
        for name, value in (options or {}).items():
            self.set_option(name, value)
        settings.resolve(self._set_options)  # a bad MINIGRAPH_OPTIONS is an error here, not later

    if not TYPE_CHECKING:  # else mypy would accept any attribute

        def __getattr__(self, name: str) -> Any:
            raise attribute_error("a comp_graph", name, "comp_graphs", self)

    def set_option(self, name: str, value: Any) -> Any:
        """Set an option for functions compiled from now on; return its old value."""
        value = settings.find(name).check(value)
        old = self.get_option(name)
        self._set_options[name] = value
        return old

    def get_option(self, name: str) -> Any:
        """Return the value of an option."""
        return self.options[settings.find(name).name]

    @property
    def options(self) -> dict[str, Any]:
        """All options with their values."""
        return settings.resolve(self._set_options)

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

        inputs     made by `mg.input`; the function takes their values in this order or by name.  A
                   shape such as (None, 784) makes an any-size function.
        outputs    a list of expressions; or one expression, for which the function returns one
                   array; or a dict of them, for which it returns a dict of arrays
        updates    new values of parameters.  Like the outputs, they are computed from the values
                   that all parameters had at the start of the call.  A step that trains a BatchNorm
                   layer without `net.updates()` gives a warning
        optimize   True: tune even if the option `autotune` is "off"; False: choose algorithms by
                   heuristics, and neither read nor write any cache, also not that of kernels
        freeze     True: parameters become constants with their present values, so everything that
                   depends on them alone is computed once: batch norms are folded into the
                   convolutions before them, and weights are reordered for their kernels.  Later
                   changes of the parameters do not affect the function
        cache_dir  folder of the function's own cache file, <7 digits of its fingerprint>.cache,
                   which is read if it exists and written if it lacks something

        Raises GraphError for an input that is missing, listed twice or no input, and for updates of
        a frozen function; ShapeError and DTypeError for a new value that does not fit its
        parameter; CacheError for an algorithm without a measurement if `autotune` is "frozen".
        """
        options = self.options
        if optimize is False:
            options["autotune"] = "off"
        elif optimize and options["autotune"] == "off":
            options["autotune"] = "tune"
        if options["debug.check_finite"]:
            options = settings.as_written(options)
        seconds: dict[str, float] = {}
        with timed(seconds, "build"):
            traced = trace(inputs, outputs, updates or {}, freeze)
            world = agree_on_graph(traced, self.device, options)
        context = CompileContext(
            self.device,
            options,
            open_backend(self.device, options, optimize is not False, world),
            world,
            cache_dir=None if optimize is False else cache_dir,
            loaded=dict(self._loaded),
        )
        if traced.is_symbolic:
            return collect(AnySizeFunction(traced, context, _function))
        return collect(_function(Compilation(traced, context, seconds)))

    @checked
    def load_cache(self, path: FilePath, type: str = "all") -> cache_file.Loaded:
        """Load a file of `Function.save_cache` for functions that are compiled from now on.

        type  "onednn" (or "mkldnn"), "cudnn", "jit" or "all"

        Damaged entries and those of another environment are ignored; the result lists them with the
        reasons.  Raises CacheError if the file has machine code and another user could have written
        it.
        """
        loaded = cache_file.load_entries(path, type, open_backend(self.device, self.options))
        self._loaded.update(loaded.entries)
        return loaded


def _function(compilation: Compilation, counter: CallCounter | None = None) -> Function:
    """Run a compilation and return its function; read its cache file before, write it after.

    counter  counts the calls of several functions together; None: of this function alone
    """
    context, path = compilation.context, None
    if context.cache_dir is not None:
        environment = compilation.environment
        path = Path(context.cache_dir, f"{environment['fingerprint'][-7:]}.cache")
        stored = cache_file.load_from_folder(path, environment, context.backend).entries
        compilation.context = replace(context, loaded={**context.loaded, **stored})
    function: Function
    with collector_paused():
        optimized = compilation.run()
        if context.options["debug.check_finite"]:
            function = FiniteFunction(compilation, counter)
        elif context.options["graph_opt_level"] >= 0:
            function = Function(compilation, counter)
        else:
            reference = Function(compilation.as_written())
            function = VerifiedFunction(compilation, counter, optimized, reference)
    if path is not None:
        entries = function.cache_entries()
        cache_file.save_to_folder(path, environment, entries, compilation.session.merge)
    return function


@checked
def comp_graph(
    device: Annotated[str, DEVICE] | None = None,
    options: Annotated[Mapping[str, Any], OPTIONS] | None = None,
) -> CompGraph:
    """Return a graph compiler for a device.

    device   "cpu", "cuda" or "cuda:1", or "reference" (every op in NumPy); default
             `MINIGRAPH_DEVICE`, else "cpu"
    options  names and values, as `set_option` takes them

    >>> cg = comp_graph(options={"graph_opt_level": 3})
    >>> cg.set_option("graph_opt_level", 2)
    3
    """
    return CompGraph(device, options)
