"""Evaluating a network on data: see `evaluation`.  The examples have loops that train one."""

from minigraph.training.evaluation import Evaluation, accuracy, evaluate
