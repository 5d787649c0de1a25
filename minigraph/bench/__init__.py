"""`minigraph bench`: the levels of minigraph and its peers, measured beside each other.

Each side of a case runs in a process of its own (`ours`, `torch_peer`, `jax_peer`), in turn; only
those files and `plot` import a library that may be missing.  They are run, never imported.
"""
