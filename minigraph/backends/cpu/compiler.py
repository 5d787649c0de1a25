"""The system's C compiler: text in, loaded functions out, each text compiled once a process."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minigraph.errors import warn_once
from minigraph.jit.counters import count
from minigraph.jit.prelude import PRELUDE, vector_math

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",  # integers wrap around, as NumPy's do
    "-ffp-contract=off",  # a product is fused with a sum only where the graph says fma
    "-fopenmp",
    "-fPIC",
    "-shared",
)


@dataclass(frozen=True)
class Source:
    """A kernel's text, in which its name is written NAME, and the functions that it calls."""

    text: str
    support: tuple[str, ...] = ()

    @functools.cached_property
    def name(self) -> str:
        return (
            "mg_" + hashlib.sha256("\n".join((*self.support, self.text)).encode()).hexdigest()[:16]
        )


@functools.cache
def compiler() -> str | None:
    """Return the path of the C compiler, or None, with one warning, where there is none."""
    found = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if found is None:
        warn_once(
            "no C compiler was found; elementwise ops and reductions run in NumPy, several times "
            "slower: install gcc (Debian: apt-get install gcc libc6-dev)"
        )
    return found


@functools.cache
def version() -> str:
    """Return the first line of what the compiler says of itself, or "none"."""
    path = compiler()
    if path is None:
        return "none"
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    except OSError:  # found, but nothing that runs
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


_loaded: dict[str, int] = {}  # name -> address of the function; 0 where the compiler failed
_libraries: list[ctypes.CDLL] = []  # never unloaded: functions point into them
_lock = threading.Lock()


def load(sources: Sequence[Source]) -> list[int]:
    """Return the address of each kernel, 0 where it could not be compiled.

    Everything that is missing is compiled in one run of the compiler.
    """
    with _lock:
        missing = {s.name: s for s in sources if s.name not in _loaded}
        count("memory_hits", len({s.name for s in sources}) - len(missing))
        if missing:
            _loaded.update(_compile(missing))
        return [_loaded[s.name] for s in sources]


def _compile(missing: dict[str, Source]) -> dict[str, int]:
    path = compiler()
    if path is None:
        return dict.fromkeys(missing, 0)
    support = dict.fromkeys(part for s in missing.values() for part in s.support)
    text = "\n".join(
        [
            PRELUDE,
            vector_math(),
            *support,
            *(s.text.replace("NAME", name) for name, s in missing.items()),
        ]
    )
    libraries = ["-lmvec", "-lm"] if vector_math() else ["-lm"]
    try:
        with tempfile.TemporaryDirectory(prefix="minigraph-") as folder:
            source, binary = Path(folder, "kernels.c"), Path(folder, "kernels.so")
            source.write_text(text)
            command = [path, *FLAGS, str(source), "-o", str(binary), *libraries]
            subprocess.run(command, capture_output=True, text=True, check=True)
            library = ctypes.CDLL(str(binary))
    except (OSError, subprocess.CalledProcessError) as failure:
        said = str(failure)
        if isinstance(failure, subprocess.CalledProcessError):
            said = failure.stderr.strip() or f"exit status {failure.returncode}"
        first = next((x for x in said.splitlines() if "error" in x), said.strip()[:200])
        warn_once(f"{path} could not compile kernels ({first}); NumPy runs them instead")
        return dict.fromkeys(missing, 0)
    _libraries.append(library)
    count("compilations", len(missing))
    count("loads", len(missing))
    return {
        name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in missing
    }
