"""Evaluate a network on data: see `evaluation`.  The examples have training loops."""

from minigraph.training.evaluation import Evaluation, accuracy, evaluate
