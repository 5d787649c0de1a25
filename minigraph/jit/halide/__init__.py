"""Generated kernels as pipelines of Halide.

`source` describes a kernel without Halide; `pipeline`, which imports Halide, makes the machine
code.  `c_text` parses the C expressions of ops.
"""
