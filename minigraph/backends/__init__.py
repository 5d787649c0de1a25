"""Devices.  Each is a `minigraph.program.Backend`: kernels for nodes, and running programs."""
