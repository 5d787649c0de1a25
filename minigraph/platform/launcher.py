"""Launchers of MPI, such as `mpiexec`, by the environment variables of the processes they start."""

from __future__ import annotations

import os
from collections.abc import Iterable

# The variable that a launcher sets, and the one with the number of processes, or "".
LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",  # Open MPI's mpiexec
    "PMI_RANK": "PMI_SIZE",  # the mpiexec of MPICH and of Intel's MPI, srun --mpi=pmi2
    "PMIX_RANK": "",  # srun --mpi=pmix
}
# SLURM_LOCALID is the last: in a Slurm script it describes mpiexec, not the processes of mpiexec.
LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def launched() -> tuple[str, int | None]:
    """Return the launcher's variable and the number of processes; ("", 1) without a launcher.

    The number is None if the launcher does not set it.
    """
    for variable, size in LAUNCHERS.items():
        if variable in os.environ:
            text = os.environ.get(size, "")
            return variable, int(text) if text.isdecimal() else None
    return "", 1


def local_rank() -> int:
    """Return the rank of this process among those of the launcher on this machine."""
    return _number(LOCAL_RANKS) if launched()[0] else 0


def local_size() -> int:
    """Return the number of processes of the launcher on this machine, 1 without a launcher."""
    return _number(LOCAL_SIZES) or 1


def _number(variables: Iterable[str]) -> int:
    texts = (os.environ.get(name, "") for name in variables)
    return next((int(text) for text in texts if text.isdecimal()), 0)
