"""Attacks on the promises of minigraph, as functions of a seed.

`tools/attack.py` runs them for hours, `tests/test_attacks.py` some of each.  An attack is called
with a seed and an empty folder; it raises if a promise is broken, and returns counts of its work.
The same seed makes the same attempt, except for the times of signals and the order of threads.
"""
