"""Graphs on disk: one safetensors file of parameters and constants, with JSON in its metadata.

The JSON names ops by their classes and holds the fields of each.
"""

from minigraph.graph_file.reading import StoredGraph, load_graph
from minigraph.graph_file.writing import output_names, save_graph, written
