"""The environment variables of C compilers."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

# Search paths of gcc for its programs, headers and libraries.
SEARCH_PATHS = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH")
# Variables that a compiler does not inherit: CC, which zig calls to find headers; libraries to load
# into the compiler; a run path for its results; additional files to write.
EXCLUDED_VARIABLES = (
    "CC",
    "LD_PRELOAD",
    "LD_AUDIT",
    "LD_RUN_PATH",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
)


def c_compiler() -> str:
    """Return `CC`: the user's C compiler, possibly with arguments, or ""."""
    return os.environ.get("CC", "")


@functools.cache
def zig() -> str | None:
    """Return the program of the package ziglang, whose command `cc` is clang; None without it."""
    spec = importlib.util.find_spec("ziglang")
    folders = spec.submodule_search_locations if spec else None
    return shutil.which("zig", path=os.pathsep.join(folders)) if folders else None


def settings() -> str:
    """Return the variables on which the result of a C compiler depends, besides its path."""
    return " ".join(f"{name}={os.environ[name]}" for name in SEARCH_PATHS if name in os.environ)


def environment(compiler: str, folder: str) -> dict[str, str]:
    """Return the environment in which a C compiler runs.

    `PATH` includes the compiler's folder and the system's; messages are in English.

    compiler  its absolute path
    folder    for its temporary files
    """
    variables = os.environ.items()
    inherited = {name: value for name, value in variables if name not in EXCLUDED_VARIABLES}
    folders = os.environ.get("PATH"), os.path.dirname(compiler), os.defpath
    path = os.pathsep.join(filter(None, folders))
    return {**inherited, "PATH": path, "LC_ALL": "C", "TMPDIR": folder}
