"""All settings: the options of a `comp_graph`, and the environment variables of the package.

`MINIGRAPH_OPTIONS` sets options that the program did not set.  Variables are read when their values
are needed; the functions here return the values.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.arguments import short_repr
from minigraph.errors import OptionError, warn_once
from minigraph.platform import launcher

MEASURING = ("tune", "exhaustive")  # values of `autotune` that make missing measurements


@dataclass(frozen=True)
class Option:
    """A setting: one of `choices`, or without them a value of the default's type.

    default       a value, or a function of the values of the options above; if it is None, values
                  are integers or None
    sentence      description for the table in docs/reference/options.md
    default_text  text of the default, if it is a function or None
    removed       values of earlier versions, each with its replacement
    fingerprint   whether kernels or measurements depend on the option, so that its value is part of
                  a function's fingerprint
    per_process   whether processes that run a function together may have different values
    as_written    value with which the graph runs as written, op by op; `...`: unchanged
    """

    name: str
    default: Any
    sentence: str
    choices: tuple[Any, ...] = ()
    minimum: float = 0
    maximum: float = math.inf
    default_text: str = ""
    removed: tuple[tuple[str, str], ...] = ()
    fingerprint: bool = True
    per_process: bool = False
    as_written: Any = ...

    @property
    def kind(self) -> type:
        """The type of values other than None; object for an option with choices."""
        return object if self.choices else int if self.default is None else type(self.default)

    def default_among(self, values: Mapping[str, Any]) -> Any:
        """Return the default, given the values of the options above."""
        return self.default(values) if callable(self.default) else self.default

    @property
    def default_words(self) -> str:
        quoted = f'"{self.default}"' if isinstance(self.default, str) else str(self.default)
        return self.default_text or quoted

    @property
    def allowed(self) -> str:
        if self.choices:
            return ", ".join(map(repr, self.choices))
        if self.kind is bool:
            return "True or False"
        limits = f"{self.kind.__name__} >= {self.minimum}"
        limits += f" and <= {self.maximum}" if self.maximum < math.inf else ""
        return limits + " or None" * (self.default is None)

    def check(self, value: Any) -> Any:
        """Return `value` if it is allowed; OptionError with the allowed values if not."""
        if isinstance(value, np.generic):
            value = value.item()
        if self.choices:
            for choice in self.choices:
                if type(choice) is type(value) and choice == value:
                    return choice
        elif value is None and self.default is None:
            return None
        elif self.kind is bool:
            if isinstance(value, bool):
                return value
        elif type(value) in (int, self.kind) and self.minimum <= value <= self.maximum:
            return self.kind(value)
        advice = dict(self.removed).get(value) if isinstance(value, str) else None
        advice = advice or f"allowed: {self.allowed}"
        raise OptionError(f"option {self.name} does not take {short_repr(value)}; {advice}")

    def parse(self, text: str) -> Any:
        """Return the value of a text from an environment variable."""
        if text.lower() in self.choices:
            return text.lower()
        words = {"true": True, "false": False, "none": None}
        value: Any = words.get(text.lower(), text)
        for number in (float, int):
            with contextlib.suppress(ValueError):
                value = number(text)
        if self.kind is bool and value in (0, 1):
            value = bool(value)
        return self.check(value)


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            "graph_opt_level",
            2,
            "How far the graph is optimised: 0 as written, up to 3 with generated kernels. A "
            "negative level also runs level 0 and raises an error where the results differ.",
            choices=tuple(range(-3, 4)),
            as_written=0,
        ),
        Option(
            "graph_opt.jit",
            "auto",
            "What becomes generated kernels: 0 nothing, 1 elementwise ops, 2 elementwise ops and "
            'reductions. "auto" is 2 at level 3 and 0 below.',
            choices=("auto", 0, 1, 2),
            as_written=0,
        ),
        Option(
            "graph_opt.fast_math",
            False,
            "Allow rewrites that may change NaN, infinity or the sign of zero (`x/x` becomes 1, "
            "`x*0` becomes 0), regroup constants, and round a product once with the sum that adds "
            "it.",
            as_written=False,
        ),
        Option(
            "graph_opt.memory_limit",
            None,
            "Keep intermediate results within so many bytes: what waits for the backward pass is "
            "dropped and computed again where that costs the least time. The results keep their "
            "bits.",
            default_text="no limit",
            as_written=None,
        ),
        Option(
            "autotune",
            lambda values: "tune" if abs(values["graph_opt_level"]) >= 2 else "off",
            'How algorithms are chosen. "off": by heuristics. "cached": by stored measurements, '
            'else by heuristics. "tune": by measurements; missing ones are made where they may pay '
            '(on CUDA: all). "exhaustive": by measurements of everything that computes the result, '
            'in all layouts. "frozen": by stored measurements; a missing one is an error.',
            choices=("off", "cached", "tune", "exhaustive", "frozen"),
            removed=(("online", 'use "tune", which measures before the first call, or "off"'),),
            default_text='"tune" at levels 2 and 3, else "off"',
            fingerprint=False,
            as_written="off",
        ),
        Option(
            "debug.check_finite",
            False,
            "Stop at the first op that makes a NaN or an infinity of numbers, with an error that "
            "names the op, its layer, its line and the ranges of its inputs. The graph runs as "
            "written, op by op. Not on CUDA.",
        ),
        Option(
            "sizes.kept",
            None,
            "A function whose inputs have symbolic sizes keeps what it compiled for so many sizes, "
            "those of the latest calls.",
            minimum=1,
            default_text="as many as take 2 GiB",
        ),
        Option(
            "autotune.workspace_limit",
            None,
            "Choose no algorithm that needs more bytes of workspace than this.",
            default_text="no limit",
            fingerprint=False,
        ),
        Option(
            "autotune.deterministic",
            False,
            "Choose only algorithms that give the same bits in every run.",
            fingerprint=False,
        ),
        Option(
            "autotune.budget",
            30.0,
            "Measure for at most this many seconds per compile, after waiting for at most as many "
            "while other processes measure. Whatever is not measured by then uses heuristics until "
            "the next compile.",
            fingerprint=False,
        ),
        Option(
            "bulk",
            True,
            "Run a whole step as one native call (CPU) or one CUDA graph. False: one call per "
            "kernel.",
            fingerprint=False,
        ),
        Option(
            "precision",
            "float32",
            'What float32 convolutions and matrix products may compute in. "tf32", on CUDA only, '
            'rounds their inputs to TF32, to 11 bits. "bf16x3", on processors with AMX only, '
            "multiplies sums of two numbers of bfloat16, which have 16 bits.",
            choices=("float32", "tf32", "bf16x3"),
        ),
        Option(
            "amp",
            "off",
            "The type that convolutions and matrix products compute in, if it is not their own. "
            "Parameters and statistics stay float32. At level 3, kernels also store bfloat16 for "
            'each other. On the CPU "bfloat16" takes a processor with AVX512_BF16 or AMX, and '
            '"float16" is an error.',
            choices=("off", "bfloat16", "float16"),
        ),
        Option(
            "seed",
            0,
            "The seed of the random ops. The same seed, call and op give the same numbers at every "
            "level and on every device.",
            maximum=2**64 - 1,
            fingerprint=False,
        ),
        Option(
            "num_threads",
            None,
            "The number of CPU threads. Small kernels run on one thread.",
            minimum=1,
            maximum=4096,
            default_text="`MINIGRAPH_NUM_THREADS`, else one per core, shared among the processes "
            "launched there",
            per_process=True,
        ),
        Option(
            "distributed.bucket_bytes",
            4 << 20,
            "From level 1 on, gradients that several processes reduce travel together until they "
            "are so many bytes. A larger one travels alone.",
        ),
        Option(
            "distributed.compress",
            "off",
            'The type in which processes exchange gradients: "bfloat16" halves the bytes, and '
            'rounds each sum of two to 8 bits; "off" is the type of the gradients.',
            choices=("off", "bfloat16"),
        ),
        Option(
            "distributed.timeout",
            300.0,
            "Seconds that a process waits for the others at most. After them an error says what "
            "each process waits for.",
            minimum=0.001,
            fingerprint=False,
        ),
    )
}


def find(name: str) -> Option:
    """Return the option called `name`; an OptionError gives the nearest names."""
    if not isinstance(name, str) or name not in OPTIONS:
        text = short_repr(name)
        nearest = difflib.get_close_matches(text.lower(), OPTIONS, n=3, cutoff=0.4)
        names = ", ".join(nearest or OPTIONS)
        raise OptionError(f"no option is called {text}; the nearest names: {names}")
    return OPTIONS[name]


def resolve(program_values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options: of the program, else of `MINIGRAPH_OPTIONS`, else the defaults."""
    values = from_environment()
    for name, value in program_values.items():
        values[name] = find(name).check(value)
    for name, option in OPTIONS.items():  # in order: a default may depend on the options above
        values.setdefault(name, option.default_among(values))
    return {name: values[name] for name in OPTIONS}


def from_environment() -> dict[str, Any]:
    """Return the options that `MINIGRAPH_OPTIONS` sets; OptionError if it is malformed."""
    values: dict[str, Any] = {}
    for item in os.environ.get("MINIGRAPH_OPTIONS", "").split(";"):
        name, equals, text = (part.strip() for part in item.partition("="))
        if not (name or equals):
            continue
        if not equals:
            raise OptionError(f"MINIGRAPH_OPTIONS: {item!r} is not of the form name=value")
        try:
            values[name] = find(name).parse(text)
        except OptionError as error:
            raise OptionError(f"MINIGRAPH_OPTIONS: {error}") from None
    return values


def as_written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which the graph runs as written, op by op."""
    rows = (OPTIONS[name] for name in values)
    return {o.name: values[o.name] if o.as_written is ... else o.as_written for o in rows}


def fingerprint_text(values: Mapping[str, Any], per_process: bool = True) -> str:
    """Return the options that are part of a function's fingerprint, as text.

    per_process  whether with those that may differ between the processes of a function
    """
    rows = (o.name for o in OPTIONS.values() if o.fingerprint and per_process >= o.per_process)
    return ", ".join(f"{name}={values[name]}" for name in rows)


def ineffective(values: Mapping[str, Any], ignored: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `ignored`, reasons by option, whose options have other values."""
    return {name: text for name, text in ignored.items() if values[name] != OPTIONS[name].default}


def default_device() -> str:
    """Return `MINIGRAPH_DEVICE`, or "cpu"."""
    return os.environ.get("MINIGRAPH_DEVICE") or "cpu"


def num_threads(option: int | None) -> int:
    """Return the number of CPU threads: the option, `MINIGRAPH_NUM_THREADS`, or one per core."""
    if option is not None:
        return option
    text = os.environ.get("MINIGRAPH_NUM_THREADS")
    if text:
        try:
            parsed = OPTIONS["num_threads"].parse(text)
        except OptionError as error:
            raise OptionError(f"MINIGRAPH_NUM_THREADS: {error}") from None
        if parsed is not None:
            return int(parsed)
    return min(cpus(), max(1, (os.cpu_count() or 1) // launcher.local_size()))


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path | None:
    """Return the folder of the caches; warn and return None if the user has no home folder.

    The folder is `MINIGRAPH_CACHE_DIR`, or `minigraph` in `XDG_CACHE_HOME` or ~/.cache.
    """
    if folder := os.environ.get("MINIGRAPH_CACHE_DIR"):
        return Path(os.path.expanduser(folder)).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG standard: ignore a relative path
        base = Path(os.path.expanduser("~/.cache"))
    if not base.is_absolute():
        warn_once(
            "no home folder was found, so measurements and compiled kernels are not kept, and "
            "each run makes them again; set MINIGRAPH_CACHE_DIR to a folder of your own"
        )
        return None
    return base / "minigraph"


def _variable(name: str, default: Any, choices: tuple[str, ...] = ()) -> Any:
    text = os.environ.get(name)
    return Option(name, default, "", choices).parse(text) if text else default


def log_level() -> str:
    """Return `MINIGRAPH_LOG`, the lowest level of the log that is shown; "" if it is not set."""
    return _variable("MINIGRAPH_LOG", "", ("debug", "info", "warning", "error"))


def jit_backend() -> str:
    """Return `MINIGRAPH_JIT_BACKEND`, which compiles generated kernels; "": the device decides."""
    return _variable("MINIGRAPH_JIT_BACKEND", "", ("c", "halide", "nvrtc", "none"))


def jit_workdir() -> Path | None:
    """Return `MINIGRAPH_JIT_WORKDIR`, where kernels are compiled; None for a temporary folder."""
    text = os.environ.get("MINIGRAPH_JIT_WORKDIR")
    return Path(text).absolute() if text else None


def jit_keep_interm() -> bool:
    """Return `MINIGRAPH_JIT_KEEP_INTERM`: compile every kernel again and keep its source."""
    return _variable("MINIGRAPH_JIT_KEEP_INTERM", False)


def halide_debug() -> bool:
    """Return `MINIGRAPH_HALIDE_DEBUG`: print the schedule and the code of Halide's kernels."""
    return _variable("MINIGRAPH_HALIDE_DEBUG", False)
