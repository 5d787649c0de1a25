"""The processes that a launcher started together: who they are, how they agree, how they end.

They talk through MPI, which mpi4py calls: the extra `mpi`.  Where nothing was
launched there is one process, and no MPI is needed or loaded.
"""

from minigraph.distributed.world import World, world

__all__ = ["World", "world"]
