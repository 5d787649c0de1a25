"""What a compiled function is, as one record: its passes, nodes, kernels, algorithms and memory.

The page, `minigraph diff` and files are made from it.  It is put together when it is asked for.
"""
