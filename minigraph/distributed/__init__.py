"""The processes of a launcher: their ranks, agreement, collectives in Python, and their end.

They communicate by MPI through mpi4py (the extra `mpi`).  Without a launcher there is one process,
and MPI is neither needed nor loaded.
"""

from minigraph.distributed.world import World, world

__all__ = ["World", "world"]
