"""New processes: Python with a program, or this process with its caches cleared."""

import os
import subprocess
import sys
from pathlib import Path

import minigraph as mg
from minigraph.autotune import session
from minigraph.cache import open_store
from minigraph.devices import kernel_cache
from minigraph.devices.cpu import compiler, library

CACHED = (
    compiler._compiler,
    compiler.compiler,
    compiler.compiler_name,
    compiler.environment,
    open_store,
    library.can_load_code,
)
ROOT = Path(__file__).parent.parent
FOLDERS = ("tests", "tools", "examples/training")
MISSING = ("-Wignore:oneDNN is missing", "-Wignore:no C compiler was found")
PATH = os.pathsep.join(
    filter(None, [*(str(ROOT / folder) for folder in FOLDERS), os.getenv("PYTHONPATH")])
)


def start(*arguments, **environment):
    """Start Python, to which warnings are errors and the modules of FOLDERS are known.

    Not those of what this machine lacks, which tests of a whole part would all have to expect.

    arguments    of the command line; a program after "-c"
    environment  variables that differ from those of this process
    """
    return subprocess.Popen(
        [sys.executable, "-W", "error", *MISSING, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PATH, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait(process, status=0, timeout=300):
    """Wait until a process ends with a status; return what it printed, and its errors."""
    with process:
        try:
            printed, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    assert process.returncode == status, printed + errors
    return printed, errors


def python(*arguments, status=0, **environment):
    """Start Python, wait for its end, and return what it printed, and its errors."""
    return wait(start(*arguments, **environment), status)


def begin(patch, folder=None):
    """Clear this process's compilers, kernels, measurements, warnings and counters.

    folder  its cache folder from now on
    """
    forget_measurements(patch, folder)
    patch.setattr(compiler.KERNELS, "_functions", {})
    patch.setattr(kernel_cache, "_unstored", {})
    for function in CACHED:
        function.cache_clear()
    mg.jit.reset_stats()


def forget_measurements(patch, folder=None):
    """Clear this process as `begin` does, except for its kernels, which take time to compile."""
    if folder is not None:
        patch.setenv("MINIGRAPH_CACHE_DIR", str(folder))
    patch.setattr(session, "_unstored", {})
    patch.setattr("minigraph.errors._warned", set())
    open_store.cache_clear()
    mg.autotune.reset_stats()
