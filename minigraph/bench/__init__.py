"""`minigraph bench`: measure minigraph's levels beside PyTorch and JAX.

A case (`cases`) is measured on several sides, each a way to run it: a level of minigraph, or a peer
in one of its settings (`plan`).  Each side is a process of its own that runs a program (`ours`,
`torch_peer` or `jax_peer`) and answers requests (`worker`); the sides take turns (`measure`).
`results` become `tables`.
Only the peers import libraries that may be missing; they run as programs, and nothing else imports
them.
"""
