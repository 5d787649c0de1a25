"""Generation of CUDA sources for kernels, without a CUDA library or a device.

The kernels and their C expressions are those of `minigraph.jit.kernel`; CUDA divides the work
among other numbers of threads.  `thread_mapping` has the parameters of a source and the words of a
kernel's argument, `thread` the statements of all kernels, `reduction` the kernels that reduce, and
`text` the others and the whole source.
"""
