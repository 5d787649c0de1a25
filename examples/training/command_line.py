"""The command line of the examples: options, recipes, data sets, exit status."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NoReturn

from minigraph.data import CIFAR10, Dataset, Digits, ImageFolder, Synthetic
from minigraph.distributed import world
from minigraph.distributed.world import INTERRUPTED_STATUS, end_all
from minigraph.errors import GraphError

DATA = "digits, cifar10:DIR, folder:DIR, synthetic"
BEST = ".best.safetensors"  # suffix of the file with the best weights


@dataclass(frozen=True)
class Recipe:
    """The defaults of the command line for data of one kind."""

    image_size: int
    batch_size: int
    epochs: int
    lr: float
    lr_epochs: int  # after each lr_epochs epochs the learning rate falls to a tenth


class Parser(argparse.ArgumentParser):
    """A parser that raises a `GraphError`, which `run` prints as one line."""

    def error(self, message: str) -> NoReturn:
        raise GraphError(f"{message}; --help lists the options")

    def add_compiler(self) -> None:
        """Add the options of the compiler and the device."""
        add = self.add_argument
        level = "graph optimisation, -3 to 3 (default: 3)"
        add("--opt-level", type=int, default=3, metavar="N", help=level)
        products = "bfloat16 or float16: the dtype of products (default: off)"
        add("--amp", metavar="TYPE", help=products)
        add("--device", metavar="D", help="such as cpu (default: $MINIGRAPH_DEVICE, else cpu)")
        add("--threads", type=int, metavar="N", help="that compute (default: one a core)")

    def add_checkpoints(self) -> None:
        """Add the files that the state of a training is written to and read from."""
        add = self.add_argument
        add("--checkpoint", metavar="FILE", help="write the state there: each epoch and on Ctrl-C")
        add("--resume", metavar="FILE", help="go on from a checkpoint, with the same other options")


def parser(description: str, recipes: Mapping[str, Recipe]) -> Parser:
    """Return a parser of the options that all examples have."""

    def default(name: str) -> str:
        values = [f"{getattr(recipe, name)} for {kind}" for kind, recipe in recipes.items()]
        return f"(default: {', '.join(values)})"

    options = Parser(description=description)
    add = options.add_argument
    data = "folder:DIR takes DIR/train and DIR/test (or DIR/val) with a folder for each class"
    add("--data", type=_data, default="digits", help=f"one of {DATA}; {data} (default: digits)")
    add("--image-size", type=int, metavar="N", help=f"pixels a side {default('image_size')}")
    images = "images a step, of all processes together"
    add("--batch-size", type=int, metavar="N", help=f"{images} {default('batch_size')}")
    add("--epochs", type=int, metavar="N", help=f"in all, also if resumed {default('epochs')}")
    add("--lr", type=float, help=f"learning rate to begin with {default('lr')}")
    add("--seed", type=int, default=0, metavar="N", help="of weights, order, dropout (default: 0)")
    weights = "begin with the weights in this file, except a last layer for other classes"
    add("--weights", metavar="FILE", help=weights)
    options.add_compiler()
    add("--workers", type=int, default=2, metavar="N", help="that load images (default: 2)")
    options.add_checkpoints()
    best = f"CHECKPOINT{BEST}, else MODEL{BEST}"
    add(
        "--best", metavar="FILE", help=f"write the best weights there, '' nowhere (default: {best})"
    )
    return options


def _data(text: str) -> str:
    if not re.fullmatch("digits|synthetic|(cifar10|folder):.+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {DATA}")
    return text


def settle(args: argparse.Namespace, recipes: Mapping[str, Recipe]) -> Recipe:
    """Return the recipe for `--data`, changed by the other options."""
    recipe = recipes[args.data.partition(":")[0]]
    values = {field.name: getattr(args, field.name, None) for field in fields(Recipe)}
    return replace(recipe, **{name: value for name, value in values.items() if value is not None})


def run(main: Callable[[], None]) -> NoReturn:
    """Run a program and exit: with 2 and one line for a user's error, with 130 after Ctrl-C.

    An error ends all processes of the world.
    """
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_STATUS)
    except GraphError as error:
        end_all(2, f"error: {error}")
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def data_sets(data: str, size: int) -> tuple[Dataset, Dataset]:
    """Return the training set and the test set of `--data`, with images of size x size pixels."""
    kind, _, directory = data.partition(":")
    if kind == "digits":
        return Digits(size=size), Digits(train=False, size=size)
    if kind == "synthetic":
        shape = (3, size, size)
        return Synthetic(shape, classes=10), Synthetic(shape, classes=10, length=256, seed=1)
    if kind == "cifar10":
        if size != 32:
            raise GraphError(f"the images of CIFAR-10 have 32 pixels a side, not {size}")
        return CIFAR10(directory, augment=True), CIFAR10(directory, train=False)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    test = "val" if "val" in names and "test" not in names else "test"
    if "train" not in names or test not in names:
        entries = ", ".join(sorted(names)[:9]) or "nothing"
        raise GraphError(f"--data {data} takes folders train and test (or val), found {entries}")
    train_set = ImageFolder(Path(directory, "train"), size, augment=True)
    test_set = ImageFolder(Path(directory, test), size)
    if train_set.classes != test_set.classes:
        unmatched = sorted(set(train_set.classes) ^ set(test_set.classes))
        raise GraphError(
            f"--data {data}: only one of train and {test} has {', '.join(unmatched[:9])}"
        )
    return train_set, test_set


def say(text: str) -> None:
    """Print a text in process 0."""
    if world().rank == 0:
        print(text, flush=True)
