"""Generated kernels as CUDA text.  Text only: no CUDA library and no device.

The kernels are those of `minigraph.jit.kernel`, their C expressions too; what differs is how many
threads share the work.  `walk` says what a text depends on and how a kernel's argument is laid out,
`thread` has the statements that all kernels are made of, `reduction` the kernels that reduce, and
`text` the others; it puts a source together.
"""
