"""The optimizer: passes, which rewrite graphs, and the table of the passes of each level.

A pass is a function from graph to graph: it changes nothing in place and reads no option, clock or
device.  It records its rewrites in `Notes`.
"""
