"""Graphs on disk: one safetensors file of parameters and constants, with JSON in its metadata.

The JSON has the class and the fields of each op.
"""

from minigraph.graph_file.reading import StoredGraph, load_graph
from minigraph.graph_file.writing import output_names, save_graph, traced_graph
