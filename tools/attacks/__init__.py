"""Attacks on what minigraph promises, as functions of a seed.

`tools/attack.py` runs them for hours, `tests/test_attacks.py` some of each.  An attack is called
with a seed and an empty folder; it raises where a promise is broken, and returns counts of what it
did.  The same seed makes the same attempt; moments of signals and orders of threads differ.
"""
