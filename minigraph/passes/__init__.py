"""The optimizer: passes, which rewrite graphs, and the table that says which level runs which.

A pass is a function from graph to graph: it changes nothing in place and reads no option, clock or
device.  It reports in `Notes` what it did.
"""
