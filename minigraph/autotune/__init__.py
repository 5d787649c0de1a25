"""The autotuner: measure the candidates of problems, store the measurements, choose by policy.

The package depends on no library, op or layout: a problem has its candidates, their expected
results, and its layouts.  All measurements are stored, failures included, so that other policies
can use them, too.
"""

from minigraph.cache.counters import tuning_counters

stats = tuning_counters.stats
reset_stats = tuning_counters.reset_stats
