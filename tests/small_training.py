"""A program that trains a small network, and what it prints."""

import contextlib
import io
import re
import sys
from pathlib import Path
from unittest import mock

import command_line
import pytest

EXAMPLES = Path(command_line.__file__).parent
PROGRAM = '''
"""Train a small network."""

import os
import signal
import sys

from minigraph import nn, optim
from minigraph.data import Dataset

sys.path.append(EXAMPLES)

import command_line
from command_line import Recipe
from loop import fit

RECIPES = {
    "synthetic": Recipe(image_size=8, batch_size=100, epochs=3, lr=1e-3, lr_epochs=2),
    "digits": Recipe(image_size=8, batch_size=100, epochs=2, lr=1e-3, lr_epochs=2),
    "folder": Recipe(image_size=8, batch_size=2, epochs=2, lr=1e-3, lr_epochs=2),
    "cifar10": Recipe(image_size=32, batch_size=2, epochs=2, lr=1e-3, lr_epochs=2),
}


class Signalling(Dataset):
    """A set that, from one image on, sends the process that reads it a signal."""

    def __init__(self, images):
        self.images, self.shape, self.classes = images, images.shape, images.classes
        name, _, self.left = os.environ.get("INTERRUPT", "SIGINT:-1").partition(":")
        self.signal, self.left = signal.Signals[name], int(self.left)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.signal)
        return self.images[index]


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(8 * shape[1] * shape[2], classes),
        )

    def forward(self, x):
        return self.layers(x)


def main():
    parser = command_line.parser(__doc__, RECIPES)
    parser.add_argument("--model", default="net")
    parser.set_defaults(workers=0, threads=1)
    args = parser.parse_args()
    recipe = command_line.settle(args, RECIPES)
    train_set, test_set = command_line.data_sets(args.data, recipe.image_size)
    nn.manual_seed(args.seed)
    net = Net(train_set.shape, len(train_set.classes))
    optimizer = optim.Adam(net.parameters(), recipe.lr)
    fit(net, optimizer, (Signalling(train_set), test_set), recipe, args)


if __name__ == "__main__":
    command_line.run(main)
'''.replace("EXAMPLES", repr(str(EXAMPLES)))


def run(folder, *args):
    """Run the program in `folder`, in this process; return exit code, output and errors."""
    names = {"__name__": "program"}
    exec(PROGRAM, names)
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["train.py", *map(str, args)]),
        pytest.raises(SystemExit) as ended,
    ):
        command_line.run(names["main"])
    return ended.value.code, out.getvalue(), err.getvalue()


WAITED = r"waited for data in \d+% of the last epoch's time(; --workers sets .*)?"


def trained(folder, *args):
    """Return the lines that a run on synthetic data prints, but for the one that always differs."""
    code, out, err = run(folder, "--data", "synthetic", *args)
    assert code == 0, err
    return [line for line in out.splitlines() if not re.fullmatch(WAITED, line)]


# ---------------------------------------------------------------- kinds of data


def image_folder(root, *paths):
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8))
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / path)


# ---------------------------------------------------------------- bad input
