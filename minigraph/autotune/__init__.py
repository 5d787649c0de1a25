"""Measure the ways to compute something, keep the measurements, choose by policy.

The package knows no library, no op and no layout: a problem brings its candidates, the result that
they have to give, and the order of an array in each of its layouts.  Measurements are kept whole,
failures included, so that they answer another policy too.
"""

from minigraph.cache.counters import tuning_counters

stats = tuning_counters.stats
reset_stats = tuning_counters.reset_stats
