"""Generated kernels as pipelines of Halide.

`source` says what a kernel is, and needs no Halide; `pipeline`, which imports it, makes the machine
code.  Ops say in C what they compute, and `c_text` reads that.
"""
