"""Measure the ways to compute something, keep the measurements, choose by policy.

Knows no library, no op and no layout: a problem brings its candidates, what their result has to be
and how an array lies in each of its layouts.  What was measured is kept whole, failures included,
so that another policy is answered from the same measurements.
"""

from minigraph.autotune.counters import reset_stats, stats
