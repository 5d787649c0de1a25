"""Training and evaluating a network as the examples do: see `loop` and `evaluation`."""

from minigraph.training.evaluation import Evaluation, accuracy, evaluate
from minigraph.training.loop import (
    BEST,
    Best,
    Parser,
    Progress,
    Recipe,
    Training,
    data_sets,
    fit,
    held_signals,
    parser,
    run,
    say,
    settle,
)
