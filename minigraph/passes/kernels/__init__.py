"""Kernel fusion: the nodes that one generated kernel, or one launch, computes."""
