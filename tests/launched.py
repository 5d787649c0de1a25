"""Processes that a launcher of MPI starts together."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from new_process import PATH


def start(count, *arguments, **environment):
    """Start Python so many times, together; warnings are errors, the modules of tests/ are known.

    arguments    of the command line; a program after "-c"
    environment  variables that differ from those of this process
    """
    if find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed")
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.Popen(
        [
            *(shutil.which("mpiexec", path=beside), "-n", str(count)),
            *(sys.executable, "-W", "error", *map(str, arguments)),
        ],
        env={**os.environ, "PYTHONPATH": PATH, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
