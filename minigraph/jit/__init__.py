"""Generated kernels: from ops to text.  Text only: no compiler and no device.

A kernel is a C function `int name(const int64_t *a, char **slots)`.  `slots` holds the address of
every buffer of the program; `a`, the argument block, says which of them the kernel reads and
writes, and holds extents and strides, so a kernel serves every shape with the same pattern of
broadcasting.  It returns 0, or 1 if a value of its inputs does not fit.
"""

from minigraph.cache.counters import kernel_counters

stats = kernel_counters.stats
reset_stats = kernel_counters.reset_stats
