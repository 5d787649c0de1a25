"""Generated kernels as C text."""
