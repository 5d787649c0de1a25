"""Every setting, each with its default, what it takes, and a sentence.

Options belong to a `comp_graph`; `MINIGRAPH_OPTIONS` fills those that the program did not set.
The other environment variables are read here and nowhere else, when they are needed, and handed
down as values.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minigraph.errors import OptionError


@dataclass(frozen=True)
class Option:
    """A setting: `choices` lists its values, or `kind` names a type that all of its values have.

    A default that follows from other options is a function of all values.
    """

    name: str
    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    kind: type = object
    minimum: float = 0
    maximum: float = math.inf
    optional: bool = False  # None is a value too
    elsewhere: str = ""  # why values other than `inert` have no effect but on CUDA devices
    inert: tuple[Any, ...] = ()

    @property
    def allowed(self) -> str:
        if self.choices:
            return ", ".join(map(repr, self.choices))
        if self.kind is bool:
            return "True or False"
        what = f"{self.kind.__name__} >= {self.minimum}"
        what += f" and <= {self.maximum}" if self.maximum < math.inf else ""
        return what + " or None" * self.optional

    def check(self, value: Any) -> Any:
        """Return `value` if this option takes it; OptionError with the allowed values if not."""
        if isinstance(value, np.generic):
            value = value.item()  # NumPy's numbers are as good as Python's
        if self.choices:
            for choice in self.choices:
                if type(choice) is type(value) and choice == value:
                    return choice
        elif value is None and self.optional:
            return None
        elif self.kind is bool:
            if isinstance(value, bool):
                return value
        elif type(value) in (int, self.kind) and self.minimum <= value <= self.maximum:
            return self.kind(value)
        raise OptionError(f"option {self.name} does not take {value!r}; allowed: {self.allowed}")

    def parse(self, text: str) -> Any:
        """Return the value that `text`, from the environment, stands for."""
        words = {"true": True, "false": False, "none": None}
        value: Any = words.get(text.lower(), text)
        for kind in (int, float):
            if value is text:
                try:
                    value = kind(text)
                except ValueError:
                    continue
        if self.kind is bool and value in (0, 1):
            value = bool(value)
        return self.check(value)


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option(
            "graph_opt_level",
            2,
            "0 as written, 1 safe rewrites, 2 FMA and library fusion, 3 generated kernels; "
            "a negative level runs |level| and level 0 side by side and compares",
            choices=tuple(range(-3, 4)),
        ),
        Option(
            "graph_opt.jit",
            "auto",
            "0 off, 1 elementwise kernels, 2 with reductions; auto: 2 at level 3, else 0",
            choices=("auto", 0, 1, 2),
        ),
        Option(
            "graph_opt.fast_math",
            False,
            "allow rewrites that change NaN, infinity or signed zero",
            kind=bool,
        ),
        Option(
            "autotune",
            lambda values: "tune" if abs(values["graph_opt_level"]) >= 2 else "off",
            "off: heuristics; cached: stored results, else heuristics; tune: measure what is "
            "missing; frozen: a miss is an error; by default tune at level >= 2, else off",
            choices=("off", "cached", "tune", "frozen"),
        ),
        Option(
            "autotune.workspace_limit",
            None,
            "bytes of workspace that a chosen algorithm may use",
            kind=int,
            optional=True,
        ),
        Option(
            "autotune.deterministic",
            False,
            "only algorithms that give the same bits every run",
            kind=bool,
        ),
        Option(
            "autotune.budget",
            30.0,
            "seconds of measuring per compile; what is left over uses heuristics",
            kind=float,
        ),
        Option(
            "bulk",
            True,
            "run the whole step as one native call (CPU) or one CUDA graph",
            kind=bool,
        ),
        Option(
            "precision",
            "float32",
            "what CUDA may use inside float32 convolutions and products",
            choices=("float32", "tf32"),
            elsewhere="only CUDA devices compute in tf32",
            inert=("float32",),
        ),
        Option(
            "amp",
            "off",
            "CUDA: compute in the small type, keep float32 parameters and statistics",
            choices=("off", "bfloat16", "float16"),
            elsewhere="only CUDA devices compute in small types",
            inert=("off",),
        ),
        Option("seed", 0, "of the random ops", kind=int, maximum=2**64 - 1),
        Option(
            "num_threads",
            None,
            "CPU threads; None: $MINIGRAPH_NUM_THREADS, else one for each core",
            kind=int,
            minimum=1,
            maximum=4096,  # OpenMP ends the process where it cannot start so many
            optional=True,
        ),
    )
}


def find(name: str) -> Option:
    """Return the option called `name`; OptionError with the nearest names if there is none."""
    if not isinstance(name, str) or name not in OPTIONS:
        near = difflib.get_close_matches(str(name).lower(), OPTIONS, n=3, cutoff=0.4) or list(
            OPTIONS
        )
        raise OptionError(f"there is no option {name!r}; the nearest names: {', '.join(near)}")
    return OPTIONS[name]


def resolve(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options: defaults, then `MINIGRAPH_OPTIONS`, then what the program gave."""
    values = from_environment()
    for name, value in given.items():
        values[name] = find(name).check(value)
    for name, option in OPTIONS.items():  # in the order of the table: a default may look upwards
        default = option.default
        values.setdefault(name, default(values) if callable(default) else default)
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


def ineffective(values: Mapping[str, Any], device: str) -> dict[str, str]:
    """Return the options whose value asks for what the device does not do, with the reasons."""
    return {
        name: option.elsewhere
        for name, option in OPTIONS.items()
        if option.elsewhere and values[name] not in option.inert and not device.startswith("cuda")
    }


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
    return cpus()


def cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def c_compiler() -> str:
    """Return `CC`, or "cc": the name or path of the C compiler."""
    return os.environ.get("CC") or "cc"


def cache_folder() -> Path | None:
    """Return the folder of what is kept between processes; None where there is no home for it.

    It is `MINIGRAPH_CACHE_DIR`, or `minigraph` in `XDG_CACHE_HOME` or ~/.cache.
    """
    given = os.environ.get("MINIGRAPH_CACHE_DIR")
    if given:
        return Path(os.path.expanduser(given)).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # its standard says: a relative one has to be ignored
        base = Path(os.path.expanduser("~/.cache"))
    return base / "minigraph" if base.is_absolute() else None


JIT_BACKENDS = ("c", "halide", "nvrtc", "none")


def jit_backend() -> str:
    """Return `MINIGRAPH_JIT_BACKEND`: what compiles fused kernels; "" leaves it to the device."""
    text = os.environ.get("MINIGRAPH_JIT_BACKEND") or ""
    if not text:
        return ""
    if text not in JIT_BACKENDS:
        allowed = ", ".join(map(repr, JIT_BACKENDS))
        raise OptionError(f"MINIGRAPH_JIT_BACKEND does not take {text!r}; allowed: {allowed}")
    return text


def jit_workdir() -> Path | None:
    """Return `MINIGRAPH_JIT_WORKDIR`, where kernels are compiled; None for a temporary folder."""
    text = os.environ.get("MINIGRAPH_JIT_WORKDIR")
    return Path(text).absolute() if text else None


def jit_keep_interm() -> bool:
    """Return `MINIGRAPH_JIT_KEEP_INTERM`: compile all kernels anew, keep sources and objects."""
    text = os.environ.get("MINIGRAPH_JIT_KEEP_INTERM") or "0"
    return bool(Option("MINIGRAPH_JIT_KEEP_INTERM", False, "", kind=bool).parse(text))
