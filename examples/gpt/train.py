"""Train a GPT on the characters of a text, by default Python's own documentation."""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import text
from model import GPT

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.training import Evaluation

sys.path.append(str(Path(__file__).parents[1] / "training"))  # the loop of all examples

import command_line
from loop import Training, train

CONTEXT = 64


def parser():
    options = command_line.Parser(description=__doc__)
    add = options.add_argument
    add("--data", metavar="FILE", help="a text (default: docstrings of the standard library)")
    add("--characters", type=_count, metavar="N", help="of the text, at most (default: all)")
    rows = f"rows of {CONTEXT} characters, of all processes together"
    add("--batch-size", type=_count, default=32, metavar="N", help=f"{rows} (default: 32)")
    add("--epochs", type=_count, default=3, metavar="N", help="in all, also if resumed")
    add("--lr", type=float, default=1e-3, help="the highest learning rate (default: 0.001)")
    add("--seed", type=int, default=0, metavar="N", help="of weights, order, sample (default: 0)")
    options.add_compiler()
    add("--sample", type=int, default=400, metavar="N", help="characters to write at the end")
    add(
        "--best",
        metavar="FILE",
        default="gpt" + command_line.BEST,
        help="where the best weights go",
    )
    options.add_checkpoints()
    options.set_defaults(model="gpt", workers=0)
    return options


def _count(value):
    if not value.isdecimal() or not int(value):
        raise argparse.ArgumentTypeError(f"{value!r} is no integer >= 1")
    return int(value)


class Writer(Training):
    """A GPT in training, which writes a text at the end."""

    unit, goal = "rows", "lowest test loss {:.6g}"

    def __init__(self, args):
        self.args = args
        nn.manual_seed(args.seed)
        net = GPT(len(text.CHARACTERS), CONTEXT)
        tokens = text.encode(text.read(args.data) if args.data else text.documentation())
        inputs, targets = text.rows(tokens[: args.characters], CONTEXT)
        test = max(len(inputs) // 20, 1)  # the last twentieth of the text
        sets = (inputs[:-test], targets[:-test]), (inputs[-test:], targets[-test:])
        about = {"model": "GPT", "data": f"{len(inputs)} rows"}
        super().__init__(net, optim.AdamW(net.parameters(), args.lr), sets, args, args, about)

    def describe(self):
        count = sum(p.size for p in self.net.parameters())
        characters = len(self.train_batches) * self.batch_size * CONTEXT
        return f"GPT with {count:,} parameters, {characters:,} characters an epoch"

    def compile(self, cg):
        shape = (self.batch_size // self.world.size, CONTEXT)
        inputs, targets = (mg.input(name, shape, "int64") for name in ("inputs", "targets"))
        loss = ops.cross_entropy(self.net.train()(inputs), targets)
        updates = self.optimizer.minimize(loss, clip_norm=1.0, reduce=self.world)
        self.step = cg.compile(
            [inputs, targets], [ops.all_reduce(loss, self.world, "mean")], updates
        )
        self.measure = Evaluation(self.net, cg=cg, world=self.world)
        row = mg.input("row", (1, CONTEXT), "int64")
        self.scores = cg.compile([row], self.net.eval()(row))

    def rate(self):
        """Return the learning rate of the next step: up for 50 steps, then down as a cosine."""
        count = len(self.train_batches)
        step = self.epoch * count + self.batch
        cosine = math.cos(math.pi * step / (self.epochs * count))
        return self.lr * min(1, (step + 1) / 50) * (0.1 + 0.45 * (1 + cosine))

    def assess(self, metrics):
        loss, accuracy = metrics["loss"], f"test accuracy {metrics['accuracy']:.2%}"
        return -loss, f"loss {self.loss:#.6g}, test loss {loss:#.6g}, {accuracy}"

    def finish(self, metrics, path):
        if self.world.rank == 0:
            print(f"{self.sample(self.args.sample)}\n\nthe best weights are in {path}")
        command_line.say(f"loss {self.loss:#.6g}\ntest accuracy {metrics['accuracy']:.2%}")

    def sample(self, count):
        """Return a text of `count` characters, drawn from the probabilities of the network."""
        rng = np.random.default_rng(self.args.seed)
        row = [text.CHARACTERS.index("\n")]
        for _ in range(count):
            context = row[-CONTEXT:]
            padded = np.zeros((1, CONTEXT), np.int64)
            padded[0, : len(context)] = context  # attention is causal: the padding has no effect
            scores = self.scores(padded)[0, :, len(context) - 1]
            weights = np.exp(scores - scores.max(), dtype=np.float64)
            row.append(int(rng.choice(len(weights), p=weights / weights.sum())))
        return text.decode(row[1:])


def main():
    args = parser().parse_args()
    train(Writer(args), args)


if __name__ == "__main__":
    command_line.run(main)
