"""PyTorch, loaded so that its idle threads soon sleep: they are minigraph's, too.

PyTorch's wheels bring GNU's OpenMP library, and kernels of both run in its threads.  If PyTorch is
imported before `minigraph.torch`, it is as PyTorch has it: idle threads wait in a loop for long,
which on a processor that others use takes their time and makes a step several times as long.  There
the variable OMP_WAIT_POLICY=passive helps.
"""

from minigraph.devices.cpu import openmp

with openmp.brief_spins():
    import torch

__all__ = ["torch"]
