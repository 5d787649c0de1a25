"""Compiled functions: compiling them, calling them, and what they tell about themselves."""
