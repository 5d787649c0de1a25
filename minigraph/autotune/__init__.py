"""Measure the ways to compute something, keep the measurements, choose by policy.

Knows no library, no op and no layout: a problem brings its candidates, what their result has to be
and how an array lies in each of its layouts.  What was measured is kept whole, failures included,
so that another policy is answered from the same measurements.
"""

from minigraph.cache.counters import tuning_counters

stats = tuning_counters.stats
reset_stats = tuning_counters.reset_stats
