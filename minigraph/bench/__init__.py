"""`minigraph bench`: measure minigraph's levels beside PyTorch, onnxruntime and JAX.

Each side of a case runs in a process of its own (`ours`, `torch_peer`, `jax_peer`, `onnx_peer`,
`probe` or `cuda_probe`), and the sides take turns.  Only the peers, `cuda_probe` and `plot` import
libraries that may be missing; they run as programs, and nothing else imports them.
"""
