"""Devices, which compile kernels and run programs: the NumPy reference, the CPU, CUDA."""
