"""Compiled functions, and calling them."""
