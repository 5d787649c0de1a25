"""Train a multilayer perceptron."""

import math
import sys
from pathlib import Path

from model import MLP

from minigraph import nn, optim

sys.path.append(str(Path(__file__).parents[1] / "training"))  # the loop of all examples

import command_line
from command_line import Recipe
from loop import fit

RECIPES = {
    "digits": Recipe(image_size=8, batch_size=32, epochs=20, lr=1e-3, lr_epochs=15),
    "cifar10": Recipe(image_size=32, batch_size=128, epochs=30, lr=1e-3, lr_epochs=20),
    "folder": Recipe(image_size=64, batch_size=64, epochs=30, lr=3e-4, lr_epochs=20),
    "synthetic": Recipe(image_size=32, batch_size=64, epochs=3, lr=1e-3, lr_epochs=30),
}


def main():
    parser = command_line.parser(__doc__, RECIPES)
    add = parser.add_argument
    add("--hidden", type=int, nargs="*", default=[128], metavar="N", help="widths (default: 128)")
    parser.set_defaults(model="mlp")
    args = parser.parse_args()
    recipe = command_line.settle(args, RECIPES)

    train_set, test_set = command_line.data_sets(args.data, recipe.image_size)

    nn.manual_seed(args.seed)
    net = MLP(math.prod(train_set.shape), len(train_set.classes), args.hidden)
    optimizer = optim.Adam(net.parameters(), recipe.lr)

    fit(net, optimizer, (train_set, test_set), recipe, args)


if __name__ == "__main__":
    command_line.run(main)
