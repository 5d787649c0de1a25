"""Train AlexNet."""

import sys
from pathlib import Path

from model import AlexNet

from minigraph import nn, optim
from minigraph.data import Dataset

sys.path.append(str(Path(__file__).parents[1] / "training"))  # the loop of all examples

import command_line
from command_line import Recipe
from loop import fit

# The network needs 63 pixels a side: digits are scaled up and images of CIFAR-10 doubled.
RECIPES = {
    "digits": Recipe(image_size=64, batch_size=64, epochs=10, lr=3e-4, lr_epochs=8),
    "cifar10": Recipe(image_size=32, batch_size=128, epochs=30, lr=3e-4, lr_epochs=15),
    "folder": Recipe(image_size=224, batch_size=128, epochs=90, lr=1e-4, lr_epochs=30),
    "synthetic": Recipe(image_size=64, batch_size=64, epochs=3, lr=3e-4, lr_epochs=30),
}


class Doubled(Dataset):
    """A data set whose images are twice as wide and high: each pixel becomes four."""

    def __init__(self, images):
        channels, height, width = images.shape
        self.images, self.classes = images, images.classes
        self.shape = (channels, 2 * height, 2 * width)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, label = self.images[index]
        return image.repeat(2, axis=1).repeat(2, axis=2), label

    def example(self, index, rng):
        image, label = self.images.example(index, rng)
        return image.repeat(2, axis=1).repeat(2, axis=2), label


def main():
    parser = command_line.parser(__doc__, RECIPES)
    parser.set_defaults(model="alexnet")
    args = parser.parse_args()
    recipe = command_line.settle(args, RECIPES)

    train_set, test_set = command_line.data_sets(args.data, recipe.image_size)
    if recipe.image_size == 32:
        train_set, test_set = Doubled(train_set), Doubled(test_set)

    nn.manual_seed(args.seed)
    net = AlexNet(len(train_set.classes), channels=train_set.shape[0])
    optimizer = optim.Adam(net.parameters(), recipe.lr)

    fit(net, optimizer, (train_set, test_set), recipe, args)


if __name__ == "__main__":
    command_line.run(main)
