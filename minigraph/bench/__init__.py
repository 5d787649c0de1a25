"""`minigraph bench`: measure minigraph's levels and compare them with PyTorch and JAX.

A case (`cases`) is measured on several sides: levels of minigraph, and settings of peers (`plan`).
Each side is a process that runs a program (`ours`, `torch_peer` or `jax_peer`) and answers requests
(`worker`); the sides take turns (`measure`).  `results` become `tables`.  Only the peers' programs
import optional libraries.
"""
