"""Train a ResNet."""

import sys
from pathlib import Path

from model import resnet18, resnet34, resnet50, resnet101

from minigraph import nn, optim

sys.path.append(str(Path(__file__).parents[1] / "training"))  # the loop of all examples

import command_line
from command_line import Recipe
from loop import fit

MODELS = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
}

RECIPES = {
    "digits": Recipe(image_size=8, batch_size=32, epochs=10, lr=1e-3, lr_epochs=7),
    "cifar10": Recipe(image_size=32, batch_size=128, epochs=90, lr=1e-3, lr_epochs=30),
    "folder": Recipe(image_size=224, batch_size=64, epochs=90, lr=3e-4, lr_epochs=30),
    "synthetic": Recipe(image_size=32, batch_size=64, epochs=3, lr=1e-3, lr_epochs=30),
}


def main():
    parser = command_line.parser(__doc__, RECIPES)
    parser.add_argument("--model", choices=MODELS, default="resnet18", help="(default: resnet18)")
    args = parser.parse_args()
    recipe = command_line.settle(args, RECIPES)

    train_set, test_set = command_line.data_sets(args.data, recipe.image_size)
    channels, height, _ = train_set.shape

    nn.manual_seed(args.seed)
    network = MODELS[args.model]
    net = network(len(train_set.classes), small_stem=height < 64, channels=channels)
    optimizer = optim.Adam(net.parameters(), recipe.lr)

    fit(net, optimizer, (train_set, test_set), recipe, args)


if __name__ == "__main__":
    command_line.run(main)
