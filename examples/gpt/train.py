"""Train a GPT on the characters of a text, by default Python's own documentation."""

import argparse
import functools
import itertools
import math
import sys
from pathlib import Path

import numpy as np
import text
from model import GPT
from tqdm import tqdm

import minigraph as mg
from minigraph import nn, ops, optim
from minigraph.data import DataLoader
from minigraph.training import Evaluation

sys.path.append(str(Path(__file__).parents[1] / "training"))  # the loop of all examples

import command_line
from loop import held_signals

CONTEXT = 64


def parser():
    made = command_line.Parser(description=__doc__)
    add = made.add_argument
    add("--data", metavar="FILE", help="a text (default: docstrings of the standard library)")
    add("--characters", type=_count, metavar="N", help="of the text, at most (default: all)")
    rows = f"rows of {CONTEXT} characters, of all processes together"
    add("--batch-size", type=_count, default=32, metavar="N", help=f"{rows} (default: 32)")
    add("--epochs", type=_count, default=3, metavar="N", help="in all, also if resumed")
    add("--lr", type=float, default=1e-3, help="the highest learning rate (default: 0.001)")
    add("--seed", type=int, default=0, metavar="N", help="of weights, order, sample (default: 0)")
    made.add_compiler()
    add("--sample", type=int, default=400, metavar="N", help="characters to write at the end")
    add(
        "--best",
        metavar="FILE",
        default="gpt" + command_line.BEST,
        help="where the best weights go",
    )
    made.add_checkpoints()
    return made


def _count(value):
    if not value.isdecimal() or not int(value):
        raise argparse.ArgumentTypeError(f"{value!r} is no integer >= 1")
    return int(value)


class Run:
    """A training: the network, the optimizer, the batches, and how far it got."""

    def __init__(self, args):
        self.args, self.world = args, mg.distributed.world()
        nn.manual_seed(args.seed)
        self.net = GPT(len(text.CHARACTERS), CONTEXT)
        self.optimizer = optim.AdamW(self.net.parameters(), args.lr)
        tokens = text.encode(text.read(args.data) if args.data else text.documentation())
        now, then = text.rows(tokens[: args.characters], CONTEXT)
        test = max(len(now) // 20, 1)  # the last twentieth of the text
        size = args.batch_size
        train = now[:-test], then[:-test]
        share = functools.partial(DataLoader, batch_size=size, shard=self.world)
        self.batches = share(train, shuffle=True, drop_last=True, seed=args.seed)
        self.test_batches = share((now[-test:], then[-test:]))
        if not len(self.batches):
            raise mg.GraphError(
                f"{len(now) - test} rows to train on are fewer than a batch, {size}"
            )
        self.epoch = self.batch = 0
        self.loss = 0.0  # the sum over the epoch's batches
        self.least = math.inf  # the lowest test loss of an epoch

    def describe(self):
        count = sum(p.size for p in self.net.parameters())
        characters = len(self.batches) * self.args.batch_size * CONTEXT
        return f"GPT with {count:,} parameters, {characters:,} characters an epoch"

    def compile(self, cg):
        shape = (self.args.batch_size // self.world.size, CONTEXT)
        now, then = mg.input("now", shape, "int64"), mg.input("then", shape, "int64")
        loss = ops.cross_entropy(self.net.train()(now), then)
        updates = self.optimizer.minimize(loss, clip_norm=1.0, reduce=self.world)
        self.step = cg.compile([now, then], ops.all_reduce(loss, self.world, "mean"), updates)
        self.evaluate = Evaluation(self.net, cg=cg, world=self.world)
        row = mg.input("row", (1, CONTEXT), "int64")
        self.scores = cg.compile([row], self.net.eval()(row))

    def train_epoch(self, check):
        """Train to the end of the epoch, calling `check` after each batch."""
        count, self.batches.epoch = len(self.batches), self.epoch
        title, silent = f"epoch {self.epoch + 1}/{self.args.epochs}", self.world.rank > 0
        with tqdm(desc=title, total=count, disable=silent) as bar:
            bar.update(self.batch)
            for now, then in itertools.islice(self.batches, self.batch, None):
                self.optimizer.lr = self.rate(self.epoch * count + self.batch)
                self.loss += float(self.step(now, then))
                self.batch += 1
                if not math.isfinite(self.loss):
                    raise mg.GraphError(f"the loss is {self.loss}; try a lower --lr")
                bar.set_postfix_str(f"loss {self.loss / self.batch:.4f}", refresh=False)
                bar.update()
                check()

    def rate(self, step):
        """Return the learning rate of a step: up for 50 steps, then down as a cosine."""
        share = step / (self.args.epochs * len(self.batches))
        return (
            self.args.lr * min(1, (step + 1) / 50) * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))
        )

    def sample(self, count):
        """Return so many characters that the network writes, drawn by its scores."""
        rng = np.random.default_rng(self.args.seed)
        row = [text.CHARACTERS.index("\n")]
        for _ in range(count):
            seen = row[-CONTEXT:]
            padded = np.zeros((1, CONTEXT), np.int64)
            padded[0, : len(seen)] = seen  # what comes behind is not seen
            scores = self.scores(padded)[0, :, len(seen) - 1]
            chances = np.exp(scores - scores.max(), dtype=np.float64)
            row.append(int(rng.choice(len(chances), p=chances / chances.sum())))
        return text.decode(row[1:])

    def save(self, path):
        """Write all that a resumed training needs."""
        if self.world.rank > 0:
            return
        at = np.array(
            [self.epoch, self.batch, self.args.seed, self.args.batch_size, len(self.batches)]
        )
        arrays = {"at": at, "losses": np.array([self.loss, self.least])}
        for name, part in (("net", self.net), ("optimizer", self.optimizer)):
            arrays |= {f"{name}.{key}": array for key, array in part.state_dict().items()}
        mg.save(path, arrays)

    def resume(self, path):
        """Go on from a checkpoint; GraphError if it is of another training."""
        arrays = self.world.broadcast(mg.load(path) if self.world.rank == 0 else None)
        wanted = [self.args.seed, self.args.batch_size, len(self.batches)]
        found = arrays["at"].tolist() if "at" in arrays and arrays["at"].shape == (5,) else None
        if found is None or found[2:] != wanted or found[0] >= self.args.epochs:
            raise mg.GraphError(
                f"--resume {path}: no checkpoint of this training: epoch, batch, seed, rows and "
                f"batches are {found}, not up to {self.args.epochs} epochs of {wanted}"
            )
        for name, part in (("net", self.net), ("optimizer", self.optimizer)):
            keys = [key for key in arrays if key.startswith(f"{name}.")]
            part.load_state_dict({key.removeprefix(f"{name}."): arrays[key] for key in keys})
        self.epoch, self.batch, *_ = found
        self.loss, self.least = arrays["losses"].tolist()


def main():
    args = parser().parse_args()
    options = {"seed": args.seed, "graph_opt_level": args.opt_level, "num_threads": args.threads}
    options["amp"] = args.amp
    given = {name: value for name, value in options.items() if value is not None}
    cg = mg.comp_graph(args.device, given)
    run = Run(args)
    if args.resume:
        run.resume(args.resume)
    command_line.say(run.describe())
    run.compile(cg)
    with held_signals() as check:
        try:
            while run.epoch < args.epochs:
                run.train_epoch(check)
                loss, run.epoch, run.batch, run.loss = run.loss / run.batch, run.epoch + 1, 0, 0.0
                found = run.evaluate(run.test_batches)
                if found["loss"] < run.least:
                    run.least = found["loss"]
                    if run.world.rank == 0:
                        mg.save(args.best, run.net)
                if args.checkpoint:
                    run.save(args.checkpoint)
                command_line.say(
                    f"epoch {run.epoch}/{args.epochs}: loss {loss:#.6g}, "
                    f"test loss {found['loss']:#.6g}, test accuracy {found['accuracy']:.2%}"
                )
        except KeyboardInterrupt:
            advice = "nothing is kept, for lack of --checkpoint"
            if args.checkpoint:
                run.save(args.checkpoint)
                advice = f"--resume {args.checkpoint} goes on from there"
            command_line.say(f"stopped in epoch {run.epoch + 1} after batch {run.batch}; {advice}")
            raise
    if run.world.rank == 0:
        print(f"{run.sample(args.sample)}\n\nthe best weights are in {args.best}")
        print(f"loss {loss:#.6g}\ntest accuracy {found['accuracy']:.2%}", flush=True)


if __name__ == "__main__":
    command_line.run(main)
