"""Training and evaluating a network as the examples do: see `loop` and `evaluation`."""

from minigraph.training.command_line import (
    BEST,
    Parser,
    Recipe,
    data_sets,
    parser,
    run,
    say,
    settle,
)
from minigraph.training.evaluation import Evaluation, accuracy, evaluate
from minigraph.training.loop import Best, Progress, Training, fit, held_signals
