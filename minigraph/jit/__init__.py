"""Generation of kernels: from ops to source text.  Compilers and devices are elsewhere.

A kernel is a C function `int name(const int64_t *a, char **slots)`.  `slots` has the addresses of
all buffers of the program.  `a`, the argument block, has the indices of the kernel's buffers, and
extents and strides, so a kernel serves all shapes with the same pattern of broadcasting.  The
function returns 0, or 1 for an input with an invalid value.
"""

from minigraph.cache.counters import kernel_counters

stats = kernel_counters.stats
reset_stats = kernel_counters.reset_stats
