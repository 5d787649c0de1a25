"""The autotuner: measure the candidates of problems, store the measurements, choose by policy.

The package knows no library, no op and no layout: a problem has its candidates, their expected
results, and its layouts.  All measurements are stored, failures included, so that they answer other
policies, too.
"""

from minigraph.cache.counters import tuning_counters

stats = tuning_counters.stats
reset_stats = tuning_counters.reset_stats
