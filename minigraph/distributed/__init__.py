"""The processes of a launcher: their ranks, and collectives of Python data.

They communicate by MPI through mpi4py (the extra `mpi`).  Without a launcher, MPI is neither needed
nor loaded.
"""

from minigraph.distributed.world import World, world

__all__ = ["World", "world"]
